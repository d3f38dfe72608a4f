"""TracIn of test triples: factors, gradients written out in plain PyTorch, or captum's TracInCP.

    python -m bench.influence_side --how hasten --data fb15k-237 --train 2000 --tests 200

An "epoch" of the report is the scores of all pairs of ``--train`` training and ``--tests`` test
triples, gradients of the tests included. All sides: ConvE, D 200, 32 filters, BatchNorm in
evaluation mode, one checkpoint, the positive loss (one cell of each of a triple's two questions),
untrained weights. captum's and the plain side score those cells alone; captum holds a dense
gradient for each triple of a batch.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.data import plain_file
from bench.plain_conve import PlainConvE
from bench.plain_influence import PlainTracIn
from bench.report import Stopwatch, print_report
from hasten.config import TripleOptions
from hasten.data.graph.load import load_graph
from hasten.data.tables import TEST, TRAIN, KnowledgeGraph, Triples
from hasten.distributed.processes import Processes
from hasten.influence.factored import FactoredSource
from hasten.influence.factors import Arithmetic
from hasten.influence.support import encoder_of
from hasten.influence.trace import Checkpoint, Limits, trace
from hasten.influence.triples import Answers, FactoredTriples, TripleFactors
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.knowledge_graph.conve_options import ConvEOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=tuple(SIDES))
    parser.add_argument("--data", default="fb15k-237")
    parser.add_argument("--train", type=int, default=200, help="training triples; 0: all")
    parser.add_argument("--tests", type=int, default=20, help="test triples; 0: all")
    parser.add_argument("--repeats", type=int, default=1, help="times that are measured")
    parser.add_argument("--batch-size", type=int, default=20, help="triples of captum at a time")
    parser.add_argument("--chunk", type=int, default=64, help="triples of the plain side at a time")
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--memory", type=int, default=2 << 30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    graph = load_graph(TripleOptions(path=str(plain_file(options.data)), unknown="keep"), 0)
    side = SIDES[options.how](graph, options)
    side(32, 4)()  # what is set up once
    work = side(options.train, options.tests)
    clock = Stopwatch()
    for _ in range(options.repeats):
        largest = work()
    wall, cpu = clock.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.repeats,
        steps_per_epoch=1,
        examples_per_epoch=len(first(graph.of(TRAIN), options.train))
        * len(first(graph.of(TEST), options.tests)),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=largest,
    )


#: of a number of training triples and of tests, what computes their scores; returns the largest
Work = Callable[[int, int], Callable[[], float]]


def first(triples: Triples, count: int) -> Triples:
    """The first triples; all for 0."""
    return triples.take(np.arange(len(triples))[: count or None])


def hasten_side(graph: KnowledgeGraph, options: argparse.Namespace) -> Work:
    model = ConvE(ConvEOptions(), Sizes.of(graph)).eval()
    arithmetic = Arithmetic()
    encoder = encoder_of(model, arithmetic)
    assert encoder is not None
    train, tests = graph.of(TRAIN), graph.of(TEST)

    def side(training: int, testing: int) -> Callable[[], float]:
        kept = np.arange(len(train))[: training or None]
        given = first(tests, testing)

        def work() -> float:
            answers = Answers.build(graph)
            factors = TripleFactors(model, encoder, answers, "positive", "all", arithmetic)
            proponents, _ = trace(
                FactoredSource(FactoredTriples(graph, factors, given, kept), arithmetic),
                [Checkpoint("untrained", 1.0, lambda: None)],
                topk=20,
                limits=Limits(options.memory, options.block_size),
                processes=Processes(torch.device("cpu")),
            )
            return float(proponents.scores.max())

        return work

    return side


def plain_side(graph: KnowledgeGraph, options: argparse.Namespace) -> Work:
    relations = len(graph.relations)
    model = PlainConvE(len(graph.entities), 2 * relations).eval()
    traced = PlainTracIn(model, relations, label_of(graph))

    def side(training: int, testing: int) -> Callable[[], float]:
        train, tests = columns(graph.of(TRAIN), training), columns(graph.of(TEST), testing)
        return lambda: float(traced.scores(tests, train, options.chunk).topk(20).values.max())

    return side


def label_of(graph: KnowledgeGraph) -> float:
    """The label of a true answer, with smoothing."""
    return 0.9 + 0.1 / len(graph.entities)


def columns(triples: Triples, count: int) -> Tensor:
    """int64 [n, 3] of the first triples."""
    some = first(triples, count)
    return torch.from_numpy(np.stack([some.head, some.relation, some.tail], axis=1))


class Cells(nn.Module):
    """The scores of a triple's two cells, [B, 2]."""

    def __init__(self, model: PlainConvE, relations: int) -> None:
        super().__init__()
        self.model, self.relations = model, relations

    def forward(self, triples: Tensor) -> Tensor:
        head, relation, tail = triples.unbind(1)
        return torch.stack(
            [self.cells(head, relation, tail), self.cells(tail, relation + self.relations, head)], 1
        )

    def cells(self, entity: Tensor, relation: Tensor, answer: Tensor) -> Tensor:
        rows = self.model.vectors(entity, relation) * self.model.entities(answer)
        scores: Tensor = rows.sum(1) + self.model.bias[answer]
        return scores


def captum_side(graph: KnowledgeGraph, options: argparse.Namespace) -> Work:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from captum.influence import TracInCP
    relations = len(graph.relations)
    model = Cells(PlainConvE(len(graph.entities), 2 * relations), relations).eval()

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, labels, reduction="none").sum(1)

    def side(training: int, testing: int) -> Callable[[], float]:
        train, tests = (
            (rows, torch.full((len(rows), 2), label_of(graph)))
            for rows in (columns(graph.of(TRAIN), training), columns(graph.of(TEST), testing))
        )

        def work() -> float:
            warnings.simplefilter("ignore")  # it assumes what holds: a loss for each example
            data = torch.utils.data.TensorDataset(*train)
            traced = TracInCP(model, data, ["untrained"], lambda *_: 1.0, loss_fn=loss,
                              batch_size=options.batch_size)  # fmt: skip
            found: Tensor = traced.influence(tests)
            return float(found.topk(20).values.max())

        return work

    return side


SIDES: dict[str, Callable[[KnowledgeGraph, argparse.Namespace], Work]] = {
    "hasten": hasten_side,
    "plain": plain_side,
    "captum": captum_side,
}

if __name__ == "__main__":
    main()

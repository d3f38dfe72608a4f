"""TracIn of test triples: gradients in factors, or captum's TracInCP with a gradient an example.

    python -m bench.influence_side --how factors --data fb15k-237 --train 0 --tests 20 --threads 2

An "epoch" of the report is a million pairs of a training and a test triple, so that sides with
different numbers of pairs compare; ``seconds_measured`` is what this one took, test triples
included. Both sides: ConvE, D 200, 32 filters, BatchNorm in evaluation mode, one checkpoint, the
positive loss (one cell of each of a triple's two questions), untrained weights. captum's side
scores those cells alone and holds a dense gradient for each triple of a batch.
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
from hasten.models.knowledge_graph.conve import ConvE, ConvEOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="factors", choices=("factors", "captum"))
    parser.add_argument("--data", default="fb15k-237")
    parser.add_argument("--train", type=int, default=0, help="training triples; 0: all")
    parser.add_argument("--tests", type=int, default=20, help="test triples; 0: all")
    parser.add_argument("--loss", default="positive", choices=("positive", "training"))
    parser.add_argument("--layers", default="all", choices=("all", "last"))
    parser.add_argument("--batch-size", type=int, default=20, help="captum's")
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--memory", type=int, default=2 << 30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    graph = load_graph(TripleOptions(path=str(plain_file(options.data)), unknown="keep"), 0)
    train, tests = graph.of(TRAIN), graph.of(TEST)
    kept = np.arange(len(train))[: options.train or None]
    tests = tests.take(np.arange(len(tests))[: options.tests or None])
    run = captum_side if options.how == "captum" else factors_side
    work = run(graph, kept, tests, options)
    clock = Stopwatch()
    largest = work()
    wall, cpu = clock.seconds()
    pairs = len(kept) * len(tests)
    print_report(
        wall=wall,
        cpu=cpu,
        steps=pairs,
        steps_per_epoch=1_000_000,
        examples_per_epoch=1_000_000,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=largest,
        pairs=pairs,
        seconds_measured=wall,
        cpu_seconds_measured=cpu,
    )


def factors_side(
    graph: KnowledgeGraph, kept: np.ndarray, tests: Triples, options: argparse.Namespace
) -> Callable[[], float]:
    model = ConvE(ConvEOptions(), Sizes.of(graph)).eval()
    arithmetic = Arithmetic()
    encoder = encoder_of(model, arithmetic)
    assert encoder is not None

    def work() -> float:
        answers = Answers.build(graph)
        factors = TripleFactors(model, encoder, answers, options.loss, options.layers, arithmetic)
        proponents, _ = trace(
            FactoredSource(FactoredTriples(graph, factors, tests, kept), arithmetic),
            [Checkpoint("untrained", 1.0, lambda: None)],
            topk=20,
            limits=Limits(options.memory, options.block_size),
            processes=Processes(torch.device("cpu")),
        )
        return float(proponents.scores.max())

    return work


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


def captum_side(
    graph: KnowledgeGraph, kept: np.ndarray, tests: Triples, options: argparse.Namespace
) -> Callable[[], float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from captum.influence import TracInCP
    relations = len(graph.relations)
    model = Cells(PlainConvE(len(graph.entities), 2 * relations), relations).eval()
    label = 0.9 + 0.1 / len(graph.entities)

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, labels, reduction="none").sum(1)

    def data(triples: Triples) -> tuple[Tensor, Tensor]:
        columns = (triples.head, triples.relation, triples.tail)
        rows = torch.from_numpy(np.stack(columns, axis=1))
        return rows, torch.full((len(rows), 2), label)

    dataset = torch.utils.data.TensorDataset(*data(graph.of(TRAIN).take(kept)))

    def work() -> float:
        warnings.simplefilter("ignore")  # it assumes what holds: a loss for each example
        traced = TracInCP(model, dataset, ["untrained"], lambda *_: 1.0, loss_fn=loss,
                          batch_size=options.batch_size)  # fmt: skip
        found: Tensor = traced.influence(data(tests))
        return float(found.max())

    return work


if __name__ == "__main__":
    main()

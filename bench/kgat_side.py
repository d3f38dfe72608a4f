"""KGAT: an epoch of pairs, of edges and an update of the attention, from some steps of each.

    python -m bench.kgat_side --how hasten --steps 12 --threads 2
    KGAT_PYTORCH=DIR python -m bench.kgat_side --how published --steps 2
    python -m bench.kgat_side --how plain --data ml-100k-facts --layers 64 --batch-size 2048

``amazon-book`` is a graph of that size, with real pairs and made facts. ``--steps`` measures so
many steps of pairs, ten times as many of edges and one update, and adds them up to an epoch; 0
measures all. hasten's steps of edges are timed where rows have missed as many steps as they do
through an epoch; bringing all rows up to date at the end is timed apart and is part of the epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bench.book_graph import BookGraph, book_graph
from bench.clones import clone, clone_version
from bench.facts_split import NAME, PARTS, facts_split
from bench.plain_batches import EdgeBatches, PairBatches
from bench.plain_kgat import PlainKGAT
from bench.published_kgat import PublishedKGAT
from bench.report import Stopwatch, print_report
from hasten.config import KnowledgeOptions, TrainingOptions
from hasten.data.interactions.load_knowledge import load_knowledge
from hasten.data.tables import (
    TRAIN,
    Dataset,
    Facts,
    Interactions,
    Source,
    Triples,
    Vocabulary,
)
from hasten.models.collaborative.kgat import KGAT
from hasten.models.collaborative.kgat_options import KGATOptions
from hasten.models.interface import Sizes
from hasten.ops.graph.csr import CSR
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

CPU = torch.device("cpu")


def dataset_of(data: BookGraph) -> Dataset:
    """The graph as hasten holds it."""

    def numbered(count: int) -> Vocabulary:
        return Vocabulary(pa.array(np.arange(count)))

    facts = Facts(
        numbered(data.entities), numbered(data.relations),
        Triples(data.head, data.relation, data.tail),
    )  # fmt: skip
    part = np.zeros(len(data.user), np.int8)
    events = Interactions(data.user, data.item)
    source = Source("made")
    return Dataset(
        "books", numbered(data.users), numbered(data.items), events, part, "", source, facts
    )


def facts_dataset() -> Dataset:
    """ml-100k with its knowledge graph, in the fixed parts."""
    train, valid, test = (f"{NAME}.{part}.inter" for part in PARTS)
    options = KnowledgeOptions(
        path=str(facts_split()), train=train, valid=valid, test=test,
        kg=f"{NAME}.kg", links=f"{NAME}.link",
    )  # fmt: skip
    return load_knowledge(options, 0)


KINDS = ("pairs", "edges", "refresh")
#: steps before those that are timed: memory is touched for the first time
_WARM = {"pairs": 2, "edges": 4, "refresh": 1}
#: steps of edges before those of hasten that are timed: every row is read about once in so many
_BEFORE = 120
Step = Callable[[int], float]


def hasten_steps(dataset: Dataset, layers: tuple[int, ...], batch: int) -> dict[str, Step]:
    """What takes step number so and so of each kind."""
    model = KGAT(KGATOptions(layers=layers), Sizes.of(dataset))
    training = TrainingOptions(batch_size=batch)
    phases = model.phases(dataset, training)
    model.train()
    how = Precision("fp32", CPU)
    taken = [
        OptimizerStep(p, n, training, how, DataParallelRank(), CPU) for n, p in enumerate(phases)
    ]

    def stepped(number: int) -> Step:
        step, steps = taken[number], phases[number].steps()

        def take(index: int) -> float:
            return float(step(step.phase.plan(0, *divmod(index, steps)), 1e-4)["loss"])

        return take

    def edges(index: int) -> float:
        if index == 0:
            for before in range(_BEFORE):
                stepped(1)(before)
        return stepped(1)(_BEFORE + index)

    def settle(_: int) -> float:
        taken[1].optimizer.flush()
        return 0.0

    def refresh(_: int) -> float:
        model.refresh()
        return float(model.attention[0])

    steps = dict(zip(KINDS, (stepped(0), edges, refresh), strict=True))
    return {**steps, "settle": settle}


def torch_steps(
    model: PlainKGAT | PublishedKGAT, dataset: Dataset, batch: int, *, fused: bool
) -> dict[str, Step]:
    """The same of a model in plain PyTorch, with the same batches; fused: its optimizers."""
    optimizers = [torch.optim.Adam(model.parameters(), 1e-4, fused=fused) for _ in range(2)]
    known = CSR.of(dataset.histories(TRAIN)).distinct()
    user, item = torch.from_numpy(known.rows), torch.from_numpy(known.items)
    pairs = PairBatches(user, item, len(dataset.items), batch, by_user=True)
    nodes, kinds = model.shape
    edges = EdgeBatches(model.head, model.relation, model.tail, nodes, kinds, 2 * batch)

    def step(index: int, part: int) -> float:
        optimizers[part].zero_grad()
        if part == 0:
            loss = model.pair_loss(*pairs.draw(index))
        else:
            loss = model.translation_loss(*edges.draw())
        torch.autograd.backward(loss)
        optimizers[part].step()
        return loss.item()

    def refresh(_: int) -> float:
        model.attend()
        return 0.0

    steps: tuple[Step, ...] = (lambda i: step(i, 0), lambda i: step(i, 1), refresh)
    return dict(zip(KINDS, steps, strict=True))


def timed(step: Step, warm: int, count: int) -> tuple[float, float, float]:
    """Wall and CPU seconds of so many steps after those that warm up, and the last loss."""
    for index in range(warm):
        step(index)
    clock = Stopwatch()
    for index in range(warm, warm + count):
        loss = step(index)
    return (*clock.seconds(), loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "plain", "published"))
    parser.add_argument("--data", default="amazon-book", choices=("amazon-book", NAME))
    parser.add_argument("--layers", type=int, nargs="+", default=[64, 32, 16])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=0, help="of pairs that are measured; 0: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of amazon-book's graph")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    book = options.data == "amazon-book"
    dataset = dataset_of(book_graph(options.scale)) if book else facts_dataset()
    layers, batch = tuple(options.layers), options.batch_size
    versions = {"torch": str(torch.__version__)}
    if options.how == "hasten":
        steps = hasten_steps(dataset, layers, batch)
    elif options.how == "plain":
        steps = torch_steps(PlainKGAT(dataset, layers), dataset, batch, fused=True)
    else:
        folder = clone("KGAT_PYTORCH", "https://github.com/LunaBlack/KGAT-pytorch")
        versions["KGAT-pytorch"] = clone_version(folder)
        steps = torch_steps(PublishedKGAT(folder, dataset, layers), dataset, batch, fused=False)
    pairs = int(CSR.of(dataset.histories(TRAIN)).distinct().offsets[-1])
    assert dataset.facts is not None
    edges = 2 * (pairs + len(dataset.facts.triples.head))
    whole = {"pairs": -(-pairs // batch), "edges": -(-edges // (2 * batch)), "refresh": 1}
    wanted = {"pairs": options.steps, "edges": 10 * options.steps, "refresh": 1}
    counts = {kind: min(wanted[kind] or whole[kind], whole[kind]) for kind in KINDS}
    wall, cpu = 0.0, 0.0
    more: dict[str, Any] = {}
    for kind in KINDS:
        *seconds, loss = timed(steps[kind], _WARM[kind], counts[kind])
        took = [each / counts[kind] * whole[kind] for each in seconds]
        if kind == "edges" and "settle" in steps:
            settled = timed(steps["settle"], 0, 1)
            took = [took[0] + settled[0], took[1] + settled[1]]
        wall, cpu = wall + took[0], cpu + took[1]
        more |= {f"{kind}_seconds": took[0], f"{kind}_loss": loss}
    print_report(
        wall=wall,
        cpu=cpu,
        steps=1,
        steps_per_epoch=1,
        examples_per_epoch=pairs + edges,
        versions=versions,
        threads=options.threads,
        coverage=min(counts[kind] / whole[kind] for kind in KINDS),
        **more,
    )


if __name__ == "__main__":
    main()

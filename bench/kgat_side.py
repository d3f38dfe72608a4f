"""KGAT on a graph of the size of Amazon-book: a step of pairs, one of edges, a refresh.

    python -m bench.kgat_side --how hasten --part pairs --steps 5 --threads 2
    python -m bench.kgat_side --how hasten --part epoch --steps 50 --threads 2

A "step" of the report is one optimiser step (one refresh), an "epoch" is all of its kind, 652,514
pairs or all edges; ``--part epoch`` adds up all three, from so many steps of pairs and of edges and
one refresh. The plain side is given its batches for free; hasten's draws them in its time. Its
steps of edges are timed where rows have missed as many steps as they do through an epoch; bringing
all rows up to date at the end is timed apart and is part of the epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch

from bench.book_graph import BookGraph, book_graph
from bench.plain_kgat import PlainKGAT
from bench.report import Stopwatch, print_report
from hasten.config import TrainingOptions
from hasten.data.tables import Dataset, Facts, Interactions, Source, Triples, Vocabulary
from hasten.models.collaborative.kgat import KGAT, KGATOptions
from hasten.models.interface import Sizes
from hasten.training.precision import Precision
from hasten.training.step import DataShard, OptimizerStep

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


PARTS = ("pairs", "edges", "refresh")
#: steps of edges before those that are timed: every row is read about once in so many
_BEFORE = 120
#: the first three steps took twice as long as the others: memory is touched for the first time
_WARM = 4
Step = Callable[[int], float]


def hasten_steps(data: BookGraph, batch: int, precision: str) -> dict[str, Step]:
    """What takes step number so and so of each part."""
    options = KGATOptions()
    dataset = dataset_of(data)
    model = KGAT(options, Sizes.of(dataset))
    training = TrainingOptions(batch_size=batch)
    phases = model.phases(dataset, training)
    model.train()
    how = Precision("bf16" if precision == "bf16" else "fp32", CPU)

    taken = [OptimizerStep(p, n, training, how, DataShard(), CPU) for n, p in enumerate(phases)]

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

    steps = dict(zip(PARTS, (stepped(0), edges, refresh), strict=True))
    return {**steps, "settle": settle}


def plain_steps(data: BookGraph, batch: int, precision: str) -> dict[str, Step]:
    model = PlainKGAT(data)
    optimisers = [torch.optim.Adam(model.parameters(), 1e-4, fused=True) for _ in range(2)]
    generator = np.random.default_rng(0)
    pairs = torch.from_numpy(generator.permutation(len(data.user)))
    edges = torch.from_numpy(generator.permutation(len(model.head)))
    user, item = torch.from_numpy(data.user), torch.from_numpy(data.item)

    def step(index: int, part: int) -> float:
        optimisers[part].zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if part == 0:
                of = pairs[index * batch : (index + 1) * batch]
                other = torch.randint(data.items, of.shape)
                loss = model.pair_loss(user[of], item[of], other)
            else:
                of = edges[index * 2 * batch : (index + 1) * 2 * batch]
                loss = model.translation_loss(of, torch.randint(model.count, of.shape))
        torch.autograd.backward(loss)
        optimisers[part].step()
        return loss.item()

    def refresh(_: int) -> float:
        model.attend()
        return float(model.matrix.values()[0])

    steps: tuple[Step, ...] = (lambda i: step(i, 0), lambda i: step(i, 1), refresh)
    return dict(zip(PARTS, steps, strict=True))


def timed(step: Step, count: int) -> tuple[float, float, float]:
    """Wall and CPU seconds of so many steps after those that warm up, and the last loss."""
    for index in range(_WARM):
        step(index)
    clock = Stopwatch()
    for index in range(_WARM, _WARM + count):
        loss = step(index)
    return (*clock.seconds(), loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "plain"))
    parser.add_argument("--part", default="pairs", choices=(*PARTS, "epoch"))
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5, help="steps that are measured")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the graph")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    data = book_graph(options.scale)
    make = hasten_steps if options.how == "hasten" else plain_steps
    steps = make(data, options.batch_size, options.precision)
    edges = 2 * (len(data.user) + len(data.head))
    of_epoch = {
        "pairs": -(-len(data.user) // options.batch_size),
        "edges": -(-edges // (2 * options.batch_size)),
        "refresh": 1,
    }
    if options.part == "epoch":
        counts = dict.fromkeys(PARTS, options.steps) | {"refresh": 1}
        found, settled = {}, (0.0, 0.0)
        for part in PARTS:
            found[part] = timed(steps[part], counts[part])
            if part == "edges" and "settle" in steps:
                clock = Stopwatch()
                steps["settle"](0)
                settled = clock.seconds()
        wall, cpu = (
            sum(found[part][i] / counts[part] * of_epoch[part] for part in PARTS) for i in (0, 1)
        )
        wall, cpu = wall + settled[0], cpu + settled[1]
        more = {f"{part}_seconds": found[part][0] / counts[part] * of_epoch[part] for part in PARTS}
        more["coverage"] = min(counts[part] / of_epoch[part] for part in PARTS)
        count, whole, loss = 1, 1, found["pairs"][2]
    else:
        wall, cpu, loss = timed(steps[options.part], options.steps)
        count, whole, more = options.steps, of_epoch[options.part], {}
    print_report(
        wall=wall,
        cpu=cpu,
        steps=count,
        steps_per_epoch=whole,
        examples_per_epoch=len(data.user) if options.part == "pairs" else edges,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=loss,
        **more,
    )


if __name__ == "__main__":
    main()

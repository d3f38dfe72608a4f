"""KGAT on a graph of the size of Amazon-book: a step of pairs, one of edges, a refresh.

    python -m bench.kgat_side --how hasten --part pairs --steps 5 --threads 2

A "step" of the report is one optimiser step (one refresh), an "epoch" is all of its kind, 652,514
pairs or all edges. The plain side is given its batches for free; hasten's draws them in its time.
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
from hasten.config import RunConfig, TrainingOptions
from hasten.data.graph import Facts, Triples
from hasten.data.tables import Dataset, Interactions, Source, Vocabulary
from hasten.models.kgat import KGAT, KGATOptions
from hasten.models.seam import Sizes
from hasten.training.precision import Precision
from hasten.training.step import OptimiserStep, Share

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


def hasten_step(data: BookGraph, part: str, batch: int, precision: str) -> Callable[[int], float]:
    options = KGATOptions()
    dataset = dataset_of(data)
    model = KGAT(options, Sizes.of(dataset))
    training = TrainingOptions(batch_size=batch)
    phases = model.phases(dataset, RunConfig(model=options, training=training))
    model.train()
    if part == "refresh":

        def refresh(_: int) -> float:
            model.refresh()
            return float(model.attention[0])

        return refresh
    number = ("pairs", "edges").index(part)
    how = Precision("bf16" if precision == "bf16" else "fp32", CPU)
    step = OptimiserStep(phases[number], number, training, how, Share(), CPU)
    return lambda index: float(step(step.phase.plan(0, 0, index), 1e-4)["loss"])


def plain_step(data: BookGraph, part: str, batch: int, precision: str) -> Callable[[int], float]:
    model = PlainKGAT(data)
    if part == "refresh":

        def refresh(_: int) -> float:
            model.attend()
            return float(model.matrix.values()[0])

        return refresh
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    generator = np.random.default_rng(0)
    pairs = torch.from_numpy(generator.permutation(len(data.user)))
    edges = torch.from_numpy(generator.permutation(len(model.head)))
    user, item = torch.from_numpy(data.user), torch.from_numpy(data.item)

    def step(index: int) -> float:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if part == "pairs":
                of = pairs[index * batch : (index + 1) * batch]
                other = torch.randint(data.items, of.shape)
                loss = model.pair_loss(user[of], item[of], other)
            else:
                of = edges[index * 2 * batch : (index + 1) * 2 * batch]
                loss = model.translation_loss(of, torch.randint(model.count, of.shape))
        torch.autograd.backward(loss)
        optimiser.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "plain"))
    parser.add_argument("--part", default="pairs", choices=("pairs", "edges", "refresh"))
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5, help="steps that are measured")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the graph")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    data = book_graph(options.scale)
    make = hasten_step if options.how == "hasten" else plain_step
    step = make(data, options.part, options.batch_size, options.precision)
    clock, losses = Stopwatch(), []
    for index in range(options.steps + 1):
        if index == 1:  # the first one warms up
            clock.restart()
        losses.append(step(index))
    wall, cpu = clock.seconds()
    edges = 2 * (len(data.user) + len(data.head))
    examples = {"pairs": len(data.user), "edges": edges, "refresh": edges}[options.part]
    size = {"pairs": options.batch_size, "edges": 2 * options.batch_size, "refresh": edges}
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=-(-examples // size[options.part]),
        examples_per_epoch=examples,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=losses[-1],
    )


if __name__ == "__main__":
    main()

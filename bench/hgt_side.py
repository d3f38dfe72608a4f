"""A training step of HGT on a made graph: of the guide's size, or of PrimeKG's.

    python -m bench.hgt_side --how hasten --graph guide --mode edges --fan-out 2 --accumulate 4
    python -m bench.hgt_side --how pyg --passes 4 --steps 1
    python -m bench.hgt_side --how hasten --graph primekg --mode full --recompute --steps 1

``guide``: 66,903 nodes of 10 types, 100,000 links of 15 relations, which are 200,000 messages of 30
kinds; ``primekg``: 129,375 nodes, 4,050,249 links of 30 relations, 8.1 million messages. Width 512,
hidden 256, 2 layers, 8 heads. Every side trains the same model on as many scored pairs: at most a
fifth of a relation's links against 64 drawn nodes of each type (:mod:`bench.link_step`); all other
links pass messages. No contrast: a made graph has no similar nodes. An "epoch" of the report is one
optimizer step. ``--steps`` and ``--warm`` count passes, of which a step of the other sides has
``--passes``; hasten encodes once a step. Reported besides: bytes before the first step, those of
Adam's moments, and what a step takes above both.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from bench.made_graph import GRAPHS, MadeGraph, made_graph
from bench.report import Stopwatch, peak_memory_bytes, print_report

if TYPE_CHECKING:
    from hasten.data.tables import KnowledgeGraph

CPU = torch.device("cpu")
#: at most as many links of a relation a step, and at most this share of them
SAMPLE, SHARE = 5000, 0.2


def scored_links(made: MadeGraph, sample: int) -> int:
    """Links of each relation that a step scores."""
    return min(sample, int(np.bincount(made.relation).min() * SHARE))


def knowledge_graph(made: MadeGraph) -> KnowledgeGraph:
    """The graph as hasten's data; all links are of the training part."""
    from hasten.data.tables import KnowledgeGraph, Source, Triples, Vocabulary

    count = len(made.head)
    kind = np.repeat(np.arange(len(made.sizes)), made.sizes)
    labels = pa.array([f"t{t}::{n:07d}" for n, t in enumerate(kind.tolist())])
    relations = pa.array([f"r{number:02d}" for number in range(len(made.ends))])
    return KnowledgeGraph(
        "made", Vocabulary(labels), Vocabulary(relations),
        Triples(made.head, made.relation, made.tail),
        np.zeros(count, np.int8), "", Source("made"), np.zeros(count, bool), typed=True,
    )  # fmt: skip


def hasten_step(made: MadeGraph, options: argparse.Namespace) -> tuple[Callable[[int], float], int]:
    """What takes a step, and the bytes of the parameters."""
    from hasten.config import TrainingOptions
    from hasten.models.interface import Sizes
    from hasten.models.typed_graph.hgt import HGT
    from hasten.models.typed_graph.hgt_options import HGTOptions
    from hasten.training.gradient_accumulation import DataParallelRank
    from hasten.training.precision import Precision
    from hasten.training.step import OptimizerStep

    graph = knowledge_graph(made)
    # a number of steps: each scores as many links as it may
    chosen = HGTOptions(
        mode=options.mode, fan_out=options.fan_out, contrastive_weight=0.0, loss="logistic",
        scored_share=SHARE, steps_per_epoch=100,
    )  # fmt: skip
    training = TrainingOptions(
        batch_size=options.sample, accumulate=options.accumulate, recompute=options.recompute
    )
    model = HGT(chosen, Sizes.of(graph))
    (phase,) = model.phases(graph, training)
    model.train()
    step = OptimizerStep(phase, 0, training, Precision("fp32", CPU), DataParallelRank(), CPU)

    def take(index: int) -> float:
        return float(step(phase.plan(0, 0, index % phase.steps()), 1e-3)["link"])

    return take, sum(p.nbytes for p in model.parameters())


def other_step(made: MadeGraph, options: argparse.Namespace) -> tuple[Callable[[int], float], int]:
    """The same of another side; what takes a pass of a step."""
    from bench.link_step import LinkStep, PlainHGT

    encoder: torch.nn.Module
    if options.how == "pyg":
        from bench.pyg_hgt import PyGHGT

        encoder = PyGHGT(made)
    else:
        encoder = PlainHGT(made)
    step = LinkStep(made, encoder, scored_links(made, options.sample), options.passes)
    return lambda _: step.take_pass(), sum(p.nbytes for p in step.parameters())


def forget_peak() -> int:
    """Begin the peak anew (Linux); the bytes that are resident now."""
    gc.collect()
    target = Path("/proc/self/clear_refs")
    if target.exists():
        target.write_text("5")
    return peak_memory_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "plain", "pyg"))
    parser.add_argument("--graph", default="guide", choices=tuple(GRAPHS))
    parser.add_argument("--mode", default="full", choices=("full", "edges"))
    parser.add_argument("--fan-out", type=int)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="links of a relation a step")
    parser.add_argument("--passes", type=int, default=1, help="of a step of the other sides")
    parser.add_argument("--warm", type=int, default=1, help="passes before those measured")
    parser.add_argument("--steps", type=int, default=2, help="passes that are measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of nodes and links")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    made = made_graph(options.graph, options.scale)
    build = hasten_step if options.how == "hasten" else other_step
    take, parameters = build(made, options)
    before = forget_peak()
    for index in range(options.warm):
        take(index)
    clock = Stopwatch()
    for index in range(options.steps):
        loss = take(options.warm + index)
    wall, cpu = clock.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=options.passes,
        examples_per_epoch=scored_links(made, options.sample) * len(made.ends),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=loss,
        bytes_before=before,
        bytes_of_moments=2 * parameters,
        bytes_above=peak_memory_bytes() - before - 2 * parameters,
    )


if __name__ == "__main__":
    main()

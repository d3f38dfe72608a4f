"""A training step of HGT on a made graph: of the guide's size, or of PrimeKG's.

    python -m bench.hgt_side --how hasten --graph guide --mode edges --fan-out 2 --accumulate 4
    python -m bench.hgt_side --how pyg --graph guide --passes 4
    python -m bench.hgt_side --how hasten --graph primekg --mode full --recompute --steps 1

``guide``: 66,903 nodes of 10 types, 100,000 links of 15 relations, which are 200,000 messages of 30
kinds; ``primekg``: 129,375 nodes, 4,050,249 links of 30 relations, 8.1 million messages. Width 512,
hidden 256, 2 layers, 8 heads. An "epoch" of the report is one optimiser step. hasten scores links
by its DistMult decoder against 64 drawn ends a relation and side; PyG's side is the guide's step,
the sampled links in shares with a whole pass each. No contrast on either side: a made graph has no
similar nodes. Reported besides: bytes before the first step, those of Adam's moments, and what a
step takes above both.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from bench.report import Stopwatch, peak_memory_bytes, print_report

CPU = torch.device("cpu")
TYPES = 10
#: nodes, links, relations
GRAPHS = {"guide": (66_903, 100_000, 15), "primekg": (129_375, 4_050_249, 30)}
SAMPLE = 5000

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class MadeGraph:
    """Links between nodes 0..N - 1, those of a type together; ends: [R, 2] types."""

    sizes: Int64
    ends: Int64
    head: Int64
    relation: Int64
    tail: Int64

    @property
    def offsets(self) -> Int64:
        return np.concatenate([[0], np.cumsum(self.sizes)])


def made_graph(nodes: int, links: int, relations: int) -> MadeGraph:
    """From a seed: relations of equal size between uniform nodes of two types each."""
    generator = np.random.default_rng(0)
    share = generator.dirichlet(np.full(TYPES, 2.0))
    sizes = np.maximum(nodes // 1000 + 1, (share * nodes).astype(np.int64))
    sizes[np.argmax(sizes)] += nodes - sizes.sum()
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ends = generator.integers(TYPES, size=(relations, 2))
    relation = np.arange(links) % relations
    low, high = offsets[ends[relation]], offsets[ends[relation] + 1]
    head, tail = generator.integers(low, high).T
    return MadeGraph(sizes, ends, head, relation, tail)


def hasten_step(made: MadeGraph, options: argparse.Namespace) -> tuple[Callable[[int], float], int]:
    """What takes a step, and the bytes of the parameters."""
    from hasten.config import TrainingOptions
    from hasten.data.tables import KnowledgeGraph, Source, Triples, Vocabulary
    from hasten.models.interface import Sizes
    from hasten.models.typed_graph.hgt import HGT
    from hasten.models.typed_graph.hgt_options import HGTOptions
    from hasten.training.precision import Precision
    from hasten.training.step import DataShard, OptimizerStep

    count = len(made.head)
    kind = np.repeat(np.arange(TYPES), made.sizes)
    labels = pa.array([f"t{t}::{n:07d}" for n, t in enumerate(kind.tolist())])
    relations = pa.array([f"r{number:02d}" for number in range(len(made.ends))])
    graph = KnowledgeGraph(
        "made", Vocabulary(labels), Vocabulary(relations),
        Triples(made.head, made.relation, made.tail),
        np.zeros(count, np.int8), "", Source("made"), np.zeros(count, bool), typed=True,
    )  # fmt: skip
    # the logistic loss is the guide's, but for the number of drawn ends
    chosen = HGTOptions(
        mode=options.mode, fan_out=options.fan_out, contrastive_weight=0.0, loss="logistic"
    )
    training = TrainingOptions(
        batch_size=options.sample, accumulate=options.accumulate, recompute=options.recompute
    )
    model = HGT(chosen, Sizes.of(graph))
    (phase,) = model.phases(graph, training)
    model.train()
    step = OptimizerStep(phase, 0, training, Precision("fp32", CPU), DataShard(), CPU)

    def take(index: int) -> float:
        return float(step(phase.plan(0, 0, index % phase.steps()), 1e-3)["link"])

    return take, sum(p.nbytes for p in model.parameters())


def pyg_step(made: MadeGraph, passes: int, sample: int) -> tuple[Callable[[int], float], int]:
    from bench.pyg_hgt import GuideModel, fair, guide_step

    fair()
    names = [f"t{number}" for number in range(TYPES)]
    edges = {}
    for r, (s, t) in enumerate(made.ends.tolist()):
        mine = made.relation == r
        pair = np.stack([made.head[mine] - made.offsets[s], made.tail[mine] - made.offsets[t]])
        edges[names[s], f"r{r}", names[t]] = torch.from_numpy(pair)
        edges[names[t], f"back{r}", names[s]] = torch.from_numpy(pair[::-1].copy())
    sizes = dict(zip(names, made.sizes.tolist(), strict=True))
    model = GuideModel(sizes, edges, hidden=256, width=512)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3, fused=True)

    def take(_: int) -> float:
        return guide_step(model, optimiser, sample, passes)

    return take, sum(p.nbytes for p in model.parameters())


def forget_peak() -> int:
    """Begin the peak anew (Linux); the bytes that are resident now."""
    gc.collect()
    target = Path("/proc/self/clear_refs")
    if target.exists():
        target.write_text("5")
    return peak_memory_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "pyg"))
    parser.add_argument("--graph", default="guide", choices=tuple(GRAPHS))
    parser.add_argument("--mode", default="full", choices=("full", "edges"))
    parser.add_argument("--fan-out", type=int)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="links of a relation a step")
    parser.add_argument("--passes", type=int, default=4, help="of PyG's step")
    parser.add_argument("--warm", type=int, default=1, help="steps before those that are measured")
    parser.add_argument("--steps", type=int, default=2, help="steps that are measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of nodes and links")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    nodes, links, relations = GRAPHS[options.graph]
    made = made_graph(int(nodes * options.scale), int(links * options.scale), relations)
    made_step: tuple[Any, int]
    if options.how == "hasten":
        made_step = hasten_step(made, options)
    else:
        made_step = pyg_step(made, options.passes, options.sample)
    take, parameters = made_step
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
        steps_per_epoch=1,
        examples_per_epoch=min(options.sample, links // relations) * relations,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=loss,
        bytes_before=before,
        bytes_of_moments=2 * parameters,
        bytes_above=peak_memory_bytes() - before - 2 * parameters,
    )


if __name__ == "__main__":
    main()

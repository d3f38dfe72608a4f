"""One sparse product of the size of KGAT's Amazon-book: 6.4 million edges, width 64.

    python -m bench.spmm_side --how hasten --part both --threads 2

An "epoch" of the report is one product (``forward``), or one with its gradient (``both``).
``floor_seconds`` is the time that a copy of as many bytes takes in the same process: for every edge
a row of the table, an index and a weight, and the result once. torch has no fast gradient of its
CSR product: its transpose is stored, as ours is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from bench.book_graph import book_graph
from bench.kgat_side import dataset_of
from bench.plain_graph import SparseMatrix
from bench.report import Stopwatch, print_report
from hasten.ops.graph.collaborative_graph import CollaborativeGraph
from hasten.ops.graph.spmm import SparseGraph, spmm

WIDTH = 64
#: products before those that are measured: until results lie in memory that was touched before
_WARM = 5


def floor_seconds(count: int, repeats: int = 5) -> tuple[float, float]:
    """Wall and CPU seconds of moving this many bytes by copies of 256 MB, at best."""
    source = torch.ones(1 << 25)
    target = torch.empty_like(source)
    found = []
    for _ in range(repeats):
        clock = Stopwatch()
        target.copy_(source)
        found.append(clock.seconds())
    moved = 2 * source.numel() * source.element_size()
    return min(w for w, _ in found) * count / moved, min(c for _, c in found) * count / moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "csr"))
    parser.add_argument("--part", default="both", choices=("forward", "both"))
    parser.add_argument("--steps", type=int, default=10, help="products that are measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the graph")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    found = CollaborativeGraph.of(dataset_of(book_graph(options.scale)))
    values = torch.rand(len(found))
    x = torch.randn(found.nodes, WIDTH, requires_grad=True)
    upper = torch.randn(found.nodes, WIDTH)
    if options.how == "hasten":
        graph = SparseGraph.build(found.head, found.tail, found.nodes, found.nodes)
        weights = graph.weigh(values)
        forward: Callable[[], Tensor] = lambda: spmm(graph, weights, x)  # noqa: E731
    else:
        head, tail = torch.from_numpy(found.head), torch.from_numpy(found.tail)
        matrix = SparseMatrix(head, tail, values, (found.nodes, found.nodes))
        forward = lambda: matrix @ x  # noqa: E731

    def product() -> Tensor:
        out = forward()
        return torch.autograd.grad(out, x, upper)[0] if options.part == "both" else out

    for _ in range(_WARM):
        product()
    clock = Stopwatch()
    for _ in range(options.steps):
        result = product()
    wall, cpu = clock.seconds()
    moved = len(found) * (4 * WIDTH + 8) + x.numel() * 4
    floor = floor_seconds(moved * (2 if options.part == "both" else 1))
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=1,
        examples_per_epoch=len(found),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=float(result.square().mean()),
        floor_seconds=floor[0],
        floor_cpu_seconds=floor[1],
    )


if __name__ == "__main__":
    main()

"""The simple paths of a graph with the largest products of weights between two nodes, exactly.

Weights are in [0, 1], so extending a path never increases its weight. One pass over the edges per
length gives the weight of the best walk of at most k edges from any node to the target. With it as
an upper bound, paths from the source are extended best bound first (Hart, Nilsson & Raphael 1968),
so the first complete paths are the best. All in float64, on the host.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64

Float64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PathGraph:
    """Edges by their heads. offsets: int64 [nodes + 1]; tail, kind: int64 [E]; weight: [E]."""

    offsets: Int64
    tail: Int64
    kind: Int64
    weight: Float64

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class WeighedPath:
    """Consecutive edges, and the product of their weights."""

    edges: tuple[int, ...]
    weight: float


def bounds_to(graph: PathGraph, target: int, edges: int) -> list[Float64]:
    """For k = 0, ..., edges - 1: the weight of the best walk of at most k edges to the target.

    [nodes] each; 0 if there is none. The bounds are the same for all sources.
    """
    found = [np.zeros(len(graph))]
    found[0][target] = 1.0
    filled = np.flatnonzero(np.diff(graph.offsets))
    for _ in range(1, edges):
        best = found[-1].copy()
        if len(filled):
            over = np.maximum.reduceat(graph.weight * found[-1][graph.tail], graph.offsets[filled])
            best[filled] = np.maximum(best[filled], over)
        found.append(best)
    return found


def best_paths(
    graph: PathGraph, source: int, target: int, edges: int, bounds: list[Float64] | None = None
) -> Iterator[WeighedPath]:
    """Simple paths of 1 to ``edges`` edges from the source to the target, largest weight first.

    Ties are ordered by the smaller edge numbers; paths of weight 0 are left out. bounds: from
    :func:`bounds_to`, if already computed.
    """
    bounds = bounds_to(graph, target, edges) if bounds is None else bounds
    # (bound, complete, edges, nodes, weight): of equal bounds, incomplete paths come first
    heap: list[tuple[float, bool, tuple[int, ...], tuple[int, ...], float]] = [
        (-1.0, False, (), (source,), 1.0)
    ]
    while heap:
        _, complete, path, nodes, weight = heapq.heappop(heap)
        if complete:
            yield WeighedPath(path, weight)
            continue
        start, stop = graph.offsets[nodes[-1]], graph.offsets[nodes[-1] + 1]
        tails = graph.tail[start:stop]
        weights = weight * graph.weight[start:stop]
        bound = weights * bounds[edges - len(path) - 1][tails]
        for place in np.flatnonzero(bound > 0).tolist():
            tail, edge = int(tails[place]), int(start) + place
            if tail in nodes:
                continue
            more = (*path, edge), (*nodes, tail), float(weights[place])
            done = tail == target
            heapq.heappush(heap, (-float(weights[place] if done else bound[place]), done, *more))

"""Edges of several relations, sorted for operations that process one relation at a time.

Shapes: E edges, M destinations, N sources, R relations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, ragged_offsets
from hasten.ops.graph.edge_pairs import EdgePairs
from hasten.ops.transfer import to_device
from hasten.ops.triton.choice import has_triton


@dataclass(frozen=True, eq=False)
class Relation:
    """The edges first..last of one relation, sorted by destination.

    sources, targets: int64, the distinct nodes at both ends; column: int64 [E_r], the index of each
    edge's source in ``sources``; row: that of its destination in ``targets``; offsets: int64
    [targets + 1], the edges of each destination. order: int64 [E_r], the edges sorted by source;
    offsets_t: [sources + 1], those of each source.
    """

    number: int
    first: int
    last: int
    sources: Tensor
    targets: Tensor
    column: Tensor
    row: Tensor
    offsets: Tensor
    order: Tensor
    offsets_t: Tensor

    @property
    def by_source(self) -> bool:
        """Whether the maps are applied to the sources, or to the targets."""
        return len(self.sources) <= len(self.targets)


@dataclass(frozen=True, eq=False)
class TypedEdges:
    """Edges sorted by relation, then by destination.

    target: int64 [E]; order: int64 [E], the index of each edge in the input of :meth:`build`;
    shape: (M, N).
    """

    relations: tuple[Relation, ...]
    target: Tensor
    order: Tensor
    shape: tuple[int, int]

    @classmethod
    def build(
        cls,
        source: Int64,
        relation: Int64,
        target: Int64,
        shape: tuple[int, int],
        *,
        in_order: bool = False,
    ) -> TypedEdges:
        """From edges in any order; an edge may occur several times.

        in_order: the input is already sorted by relation, destination and source.
        """
        targets, sources = shape
        order = np.arange(len(source)) if in_order else np.lexsort((source, target, relation))
        if not in_order:
            source, relation, target = source[order], relation[order], target[order]
        bounds = np.flatnonzero(np.diff(relation, prepend=-1, append=-1))
        bounds = bounds if len(relation) else np.zeros(1, np.int64)
        found = []
        for first, last in pairwise(bounds.tolist()):
            ends = (source[first:last], target[first:last])
            found.append(_relation(int(relation[first]), first, last, *ends, sources, targets))
        return cls(tuple(found), torch.from_numpy(target), torch.from_numpy(order), shape)

    def __len__(self) -> int:
        return len(self.target)

    def to(self, device: torch.device) -> TypedEdges | EdgePairs:
        """The same edges in the form for operations on a device, there."""
        return to_device(self.arranged(device), device)

    def arranged(self, device: torch.device) -> TypedEdges | EdgePairs:
        """The same edges in the form for operations on a device, still on the host."""
        return self if device.type == "cpu" else self.pairs(has_triton(device))

    def pairs(self, segments: bool = False) -> EdgePairs:
        """The same edges in the form for all relations at once. segments: for Triton's kernels."""
        relations = [(each.number, each.sources, each.column) for each in self.relations]
        return EdgePairs.of(relations, self.target, self.shape, segments)


def _relation(
    number: int, first: int, last: int, source: Int64, target: Int64, sources: int, targets: int
) -> Relation:
    own_sources, column = _distinct(source, sources)
    own_targets, row = _distinct(target, targets)
    by_source = np.argsort(column, kind="stable")
    arrays = (
        own_sources, own_targets, column, row, ragged_offsets(row, len(own_targets)),
        by_source, ragged_offsets(column, len(own_sources)),
    )  # fmt: skip
    return Relation(number, first, last, *map(torch.from_numpy, arrays))


def _distinct(nodes: Int64, count: int) -> tuple[Int64, Int64]:
    """The distinct nodes, ascending, and the index of each node in them."""
    if len(nodes) * 8 < count:
        found, place = np.unique(nodes, return_inverse=True)
        return found, place.reshape(-1)
    seen = np.zeros(count, bool)
    seen[nodes] = True
    found = np.flatnonzero(seen)
    place = np.empty(count, np.int64)
    place[found] = np.arange(len(found))
    return found, place[nodes]

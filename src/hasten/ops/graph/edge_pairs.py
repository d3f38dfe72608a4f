"""Typed edges for operations that process all relations at once, for few kernel launches on a GPU.

A pair is a relation and a source that has edges in it. The slots of the pairs are sorted by
relation, and each relation begins a new block of :data:`BLOCK` slots: a product of all rows with
the maps of their relations is one batched product over blocks. Slots without a pair repeat row 0,
and no edge reads them.

Shapes: E edges, M destinations, N sources, S slots, R relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hasten.ops.edge_segments import EdgeSegments

#: slots per block: a block repeats the maps of its relation, and half a block is empty on average
BLOCK = 64


@dataclass(frozen=True, eq=False)
class EdgePairs:
    """Edges from slots to destinations, in the order of :class:`.typed_edges.TypedEdges`.

    target: int64 [E]; slot: int64 [E], that of each edge's pair; source: int64 [S]; relation: int64
    [S / BLOCK], that of each block; shape: (M, N). segments: the edges of every
    destination and those of every slot, for Triton's kernels; elsewhere None.
    """

    target: Tensor
    slot: Tensor
    source: Tensor
    relation: Tensor
    shape: tuple[int, int]
    segments: tuple[EdgeSegments, EdgeSegments] | None = None

    @classmethod
    def of(
        cls,
        relations: Sequence[tuple[int, Tensor, Tensor]],
        target: Tensor,
        shape: tuple[int, int],
        segments: bool = False,
    ) -> EdgePairs:
        """From relations in the order of their edges, on the host.

        relations: the number of each, its distinct sources, and for each of its edges the index of
        its source in them. segments: whether to add ``segments``.
        """
        numbers, sources, columns = zip(*relations, strict=True) if relations else ((), (), ())
        blocks = [-(-len(each) // BLOCK) for each in sources]
        begin = BLOCK * np.cumsum([0, *blocks])
        source = np.zeros(begin[-1], np.int64)
        for each, first in zip(sources, begin.tolist(), strict=False):
            source[first : first + len(each)] = each.numpy()
        slots = [each.numpy() + first for each, first in zip(columns, begin, strict=False)]
        slot = np.concatenate([source[:0], *slots])
        of_block = torch.from_numpy(np.repeat(np.array(numbers, np.int64), blocks))
        found = cls(target, torch.from_numpy(slot), torch.from_numpy(source), of_block, shape)
        if not segments:
            return found
        row = target.numpy()
        by_target = EdgeSegments.of(row, slot, shape[0])
        return replace(found, segments=(by_target, EdgeSegments.of(slot, row, len(source))))

    def __len__(self) -> int:
        return len(self.target)

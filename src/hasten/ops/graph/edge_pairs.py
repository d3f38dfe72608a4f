"""Typed edges for operations that process all relations at once, as a GPU needs few launches.

A pair is a relation and a source that has edges in it. The slots of the pairs are sorted by
relation, and each relation begins a new block of :data:`BLOCK` slots: a product of all rows with
the maps of their relations is one batched product over blocks. Slots without a pair repeat row 0,
and no edge reads them.

Shapes: E edges, M destinations, N sources, S slots, R relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: slots per block: a block repeats the maps of its relation, and half a block is empty on average
BLOCK = 64


@dataclass(frozen=True, eq=False)
class EdgePairs:
    """Edges from slots to destinations, in the order of :class:`.typed_edges.TypedEdges`.

    target: int64 [E]; slot: int64 [E], that of each edge's pair; source: int64 [S]; relation: int64
    [S / BLOCK], that of each block; shape: (M, N).
    """

    target: Tensor
    slot: Tensor
    source: Tensor
    relation: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(
        cls,
        relations: Sequence[tuple[int, Tensor, Tensor]],
        target: Tensor,
        shape: tuple[int, int],
    ) -> EdgePairs:
        """From relations in the order of their edges, on the host.

        relations: the number of each, its distinct sources, and for each of its edges the index of
        its source in them.
        """
        numbers, sources, columns = zip(*relations, strict=True) if relations else ((), (), ())
        blocks = [-(-len(each) // BLOCK) for each in sources]
        begin = BLOCK * np.cumsum([0, *blocks])
        source = np.zeros(begin[-1], np.int64)
        for each, first in zip(sources, begin.tolist(), strict=False):
            source[first : first + len(each)] = each.numpy()
        slots = [each.numpy() + first for each, first in zip(columns, begin, strict=False)]
        slot = torch.from_numpy(np.concatenate([source[:0], *slots]))
        of_block = torch.from_numpy(np.repeat(np.array(numbers, np.int64), blocks))
        return cls(target, slot, torch.from_numpy(source), of_block, shape)

    def __len__(self) -> int:
        return len(self.target)

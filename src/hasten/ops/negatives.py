"""Uniform negatives that avoid each row's known items, exactly and without rejection.

With a row's distinct known items in ascending order h_0 < h_1 < ..., the r-th item outside them is
r + #{i : h_i - i <= r}. One random r in [0, N - known) and one binary search over all rows' shifted
items give a uniform sample: no loop, no host synchronization.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, distinct, ragged_offsets
from hasten.ops.random import integers


@dataclass(frozen=True)
class KnownItems:
    """For each row, the items that a sample must avoid, prepared for :func:`negatives`.

    keys: int64 [n] ascending, ``row * (N + 1) + (h_i - i)``; offsets: int64 [rows + 1];
    count: N, the size of the catalog.
    """

    keys: Tensor
    offsets: Tensor
    count: int

    @classmethod
    def build(cls, rows: Int64, items: Int64, row_count: int, count: int) -> KnownItems:
        """From pairs (row, item) in any order; pairs may be repeated."""
        flat = distinct(rows * count + items)
        row, item = flat // count, flat % count
        offsets = ragged_offsets(row, row_count)
        full = np.flatnonzero(np.diff(offsets) >= count)
        if len(full):
            raise ValueError(f"row {full[0]} knows all {count} items: it has no negatives")
        rank = np.arange(len(flat)) - offsets[row]
        keys = row * (count + 1) + (item - rank)
        return cls(torch.from_numpy(keys), torch.from_numpy(offsets), count)

    def to(self, device: torch.device) -> KnownItems:
        return KnownItems(self.keys.to(device), self.offsets.to(device), self.count)


def negatives(known: KnownItems, rows: Tensor, base: int | Tensor, *parts: Tensor) -> Tensor:
    """Sample items uniformly outside each row's known items: int64, in the broadcast shape.

    rows: int64, the row of each sample; base, parts: the key of the random numbers
    (:mod:`hasten.ops.random`); rows and parts are broadcast.
    """
    free = known.count - (known.offsets[rows + 1] - known.offsets[rows])
    draw = integers(free, base, *parts)
    rows = rows.expand(draw.shape)
    passed = torch.searchsorted(known.keys, rows * (known.count + 1) + draw, right=True)
    return draw + passed - known.offsets[rows]

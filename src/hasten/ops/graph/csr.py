"""Ragged rows of catalog ids in compressed sparse rows (CSR)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, distinct, ragged_offsets, ragged_positions
from hasten.data.tables import Histories


@dataclass(frozen=True, eq=False)
class CSR:
    """One list of catalog ids per row (compressed sparse rows), on the host.

    offsets: int64 [rows + 1]; items: int64 [n].
    """

    offsets: Int64
    items: Int64

    @classmethod
    def of(cls, histories: Histories) -> CSR:
        """The items of histories."""
        histories = histories.in_memory()
        return cls(histories.offsets, histories.items)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        return np.diff(self.offsets)

    @property
    def rows(self) -> Int64:
        """The row of every element [n]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    def row(self, number: int) -> Int64:
        """The ids of one row."""
        return self.items[self.offsets[number] : self.offsets[number + 1]]

    def take(self, rows: Int64) -> CSR:
        """The given rows, in the given order; rows may be repeated."""
        positions, offsets = ragged_positions(self.offsets, rows)
        return CSR(offsets, self.items[positions])

    def keep(self, kept: NDArray[np.bool_]) -> CSR:
        """The elements of a mask [n]; rows may become empty."""
        return CSR(ragged_offsets(self.rows[kept], len(self)), self.items[kept])

    def listed_in(self, other: CSR) -> NDArray[np.bool_]:
        """[n] which elements are in the same row of ``other``, whose rows are ascending."""
        width = 1 + max(int(self.items.max(initial=0)), int(other.items.max(initial=0)))
        keys = np.append(other.rows * width + other.items, np.iinfo(np.int64).max)
        wanted = self.rows * width + self.items
        return np.asarray(keys[np.searchsorted(keys, wanted)] == wanted)

    def distinct(self) -> CSR:
        """The distinct ids of each row, ascending."""
        if not len(self.items):
            return self
        width = int(self.items.max()) + 1
        flat = distinct(self.rows * width + self.items)
        offsets = ragged_offsets(flat // width, len(self))
        return CSR(offsets, flat % width)

"""Edges sorted by target row, for kernels that process one row per program.

A row with more edges than :data:`LONGEST` is cut into parts, each of a program of its own, whose
sums are merged: the edges of a hub are not added one after the other.

Shapes: E edges, N rows, P parts, U long rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, ragged_offsets
from hasten.data.interactions.clean import stable_order

#: edges of a program: sums of a part are written and read again, 1 % of what its edges read
LONGEST = 128


@dataclass(frozen=True, eq=False)
class EdgeSegments:
    """The edges of every row, int64.

    longest: the most edges of a part. edge, other: [E], the edges by row, and the row at the other
    end of each; offsets: [N + 1], the edges of each row. part_row, part_first: [P], the row and the
    first edge of each part; long_row: [U]; long_parts: [U + 1], the parts of each long row.
    """

    longest: int
    edge: Tensor
    other: Tensor
    offsets: Tensor
    part_row: Tensor
    part_first: Tensor
    long_row: Tensor
    long_parts: Tensor

    @classmethod
    def of(cls, row: Int64, other: Int64, count: int) -> EdgeSegments:
        """From the rows at both ends of every edge, of which ``count`` own edges, on the host."""
        edge, offsets = stable_order(row, count), ragged_offsets(row, count)
        degrees = np.diff(offsets)
        long_row = np.flatnonzero(degrees > LONGEST)
        of_row = -(-degrees[long_row] // LONGEST)
        long_parts = np.concatenate([[0], np.cumsum(of_row)])
        part_row = np.repeat(long_row, of_row)
        number = np.arange(len(part_row)) - np.repeat(long_parts[:-1], of_row)
        part_first = offsets[part_row] + LONGEST * number
        arrays = edge, other[edge], offsets, part_row, part_first, long_row, long_parts
        tensors = (torch.from_numpy(each.astype(np.int64, copy=False)) for each in arrays)
        return cls(LONGEST, *tensors)

"""Co-occurrence counts of items: ``XᵀX`` of the users × items matrix, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, ragged_offsets, ragged_positions
from hasten.ops.graph.csr import CSR

#: elements of a block of rows, and pairs that are counted for it
_ELEMENTS = 1 << 22


def cooccurrence_blocks(
    pairs: CSR, items: int, weights: NDArray[np.float64] | None = None
) -> Iterator[tuple[int, NDArray[Any]]]:
    """The first row of each block, and the block [B, N] of ``Xᵀ diag(weights) X``.

    pairs: the distinct items of each user, where X is 1. weights: [U], None: ones, with counts in
    int64. The cost is the sum of the squared numbers of items of the users.
    """
    order = np.argsort(pairs.items, kind="stable")
    users = pairs.rows[order]
    bounds = ragged_offsets(pairs.items, items)
    reached = np.append(0, np.cumsum(pairs.lengths[users]))[bounds]
    for start, stop in ranges(np.maximum(np.diff(reached), items), _ELEMENTS):
        block_users = users[bounds[start] : bounds[stop]]
        row = np.repeat(np.arange(stop - start), np.diff(bounds[start : stop + 1]))
        positions, new = ragged_positions(pairs.offsets, block_users)
        lengths = np.diff(new)
        codes = np.repeat(row * items, lengths) + pairs.items[positions]
        weight = None if weights is None else np.repeat(weights[block_users], lengths)
        counts = np.bincount(codes, weight, minlength=(stop - start) * items)
        yield start, counts.reshape(-1, items)


def ranges(work: Int64, limit: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive elements with at most this sum, or of a single element."""
    sums = np.append(0, np.cumsum(work))
    start = 0
    while start < len(work):
        last = int(np.searchsorted(sums, sums[start] + limit, "right")) - 1
        stop = max(start + 1, last)
        yield start, stop
        start = stop

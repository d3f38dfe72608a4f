"""Pairs of sets with a Jaccard similarity above a threshold, without an N×N matrix.

The Jaccard similarity of two sets is the size of their intersection divided by that of their union.
Intersections are counted for a block of sets at a time: for every member, the sets that contain it.
"""

from __future__ import annotations

import numpy as np

from hasten.arrays import ragged_offsets, ragged_positions
from hasten.ops.graph.csr import CSR

#: counters in memory at a time
_COUNTERS = 1 << 22


def jaccard_pairs(sets: CSR, columns: int, threshold: float) -> CSR:
    """[N] for each set, the others with a similarity above the threshold, ascending.

    sets: distinct members below ``columns``. An empty set is similar to none.
    """
    count = len(sets)
    lengths = sets.lengths
    order = np.argsort(sets.items, kind="stable")
    holders = sets.rows[order]
    bounds = ragged_offsets(sets.items, columns)
    step = max(1, _COUNTERS // max(1, count))
    rows, others = [], []
    for start in range(0, count, step):
        stop = min(start + step, count)
        first, last = sets.offsets[start], sets.offsets[stop]
        members = sets.items[first:last]
        owner = np.repeat(np.arange(stop - start), lengths[start:stop])
        positions, new = ragged_positions(bounds, members)
        shared = np.bincount(
            np.repeat(owner * count, np.diff(new)) + holders[positions],
            minlength=(stop - start) * count,
        )
        flat = np.flatnonzero(shared)
        row, other = flat // count + start, flat % count
        intersection = shared[flat]
        similar = (intersection > threshold * (lengths[row] + lengths[other] - intersection)) & (
            row != other
        )
        rows.append(row[similar])
        others.append(other[similar])
    row = np.concatenate(rows) if rows else np.empty(0, np.int64)
    offsets = ragged_offsets(row, count)
    return CSR(offsets, np.concatenate(others) if others else row)

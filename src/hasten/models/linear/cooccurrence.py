"""Co-occurrence counts of items: the entries of ``XᵀX`` of the users × items matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, ragged_offsets, ragged_positions, ranges
from hasten.ops.graph.csr import CSR

#: elements of a block of rows, or pairs that are counted for it
_ELEMENTS = 1 << 22
#: a row with more pairs than this part of the items is counted in an array of all items
_DENSE = 1 / 16


def cooccurrences(
    pairs: CSR, items: int, weights: NDArray[np.float64] | None = None
) -> Iterator[tuple[Int64, Int64, NDArray[Any]]]:
    """Row, column and value of the entries above 0 of ``Xᵀ diag(weights) X``, in blocks of rows.

    Rows and columns ascend in a block; each row is in one block. pairs: the distinct items of each
    user, where X is 1. weights: [U] above 0, None: ones, with counts in int64. The cost is the sum
    of the squared numbers of items of the users.
    """
    order = np.argsort(pairs.items, kind="stable")
    users = CSR(ragged_offsets(pairs.items, items), pairs.rows[order])
    reached = np.append(0, np.cumsum(pairs.lengths[users.items]))[users.offsets]
    counted = np.diff(reached)
    many = counted > _DENSE * items
    for dense, chosen in ((True, np.flatnonzero(many)), (False, np.flatnonzero(~many))):
        work = np.maximum(counted[chosen], items if dense else 0)
        for start, stop in ranges(work, _ELEMENTS):
            rows = chosen[start:stop]
            block = users.take(rows)
            positions, new = ragged_positions(pairs.offsets, block.items)
            lengths = np.diff(new)
            codes = np.repeat(block.rows * items, lengths) + pairs.items[positions]
            weight = None if weights is None else np.repeat(weights[block.items], lengths)
            codes, values = _sums(codes, weight, len(rows) * items if dense else None)
            row, column = np.divmod(codes, items)
            yield rows[row], column, values


def _sums(
    codes: Int64, weight: NDArray[np.float64] | None, size: int | None
) -> tuple[Int64, NDArray[Any]]:
    """The distinct codes, ascending, and the sum of their weights, added in the order given.

    size: codes are below it, and are counted in an array of this size; None: they are sorted.
    """
    if size is not None:
        sums = np.bincount(codes, weight, minlength=size)
        distinct_codes = np.flatnonzero(sums)
        return distinct_codes, sums[distinct_codes]
    if weight is None:
        codes = np.sort(codes)
    else:
        order = np.argsort(codes, kind="stable")
        codes, weight = codes[order], weight[order]
    new = np.append(True, codes[1:] != codes[:-1])[: len(codes)]
    return codes[new], np.bincount(np.cumsum(new) - 1, weight)

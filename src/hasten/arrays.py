"""Ragged arrays in compressed sparse rows (CSR): offsets and flat positions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def ragged_offsets(rows: NDArray[np.integer[Any]], count: int) -> Int64:
    """[count + 1] where each row begins in a CSR array of elements of these rows."""
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return offsets


def ragged_positions(offsets: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Flat positions of the elements of ``rows`` in a CSR array, and the new offsets."""
    lengths = offsets[rows + 1] - offsets[rows]
    new = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=new[1:])
    positions = np.arange(new[-1], dtype=np.int64) + np.repeat(offsets[rows] - new[:-1], lengths)
    return positions, new


def matches(wanted: Int64, keys: Int64) -> tuple[Int64, Int64]:
    """All pairs (index into wanted, index into keys) with the same key; keys are ascending."""
    begin = np.searchsorted(keys, wanted, "left")
    lengths = np.searchsorted(keys, wanted, "right") - begin
    row = np.repeat(np.arange(len(wanted), dtype=np.int64), lengths)
    first = np.repeat(begin - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return row, np.arange(len(row), dtype=np.int64) + first


def pair_mask(row: Int64, value: Int64, rows: int, values: Int64) -> NDArray[np.bool_]:
    """[rows, len(values)] which (row, value) occur among the pairs; values are ascending."""
    column = np.minimum(np.searchsorted(values, value), len(values) - 1)
    found = values[column] == value
    mask = np.zeros((rows, len(values)), bool)
    mask[row[found], column[found]] = True
    return mask


def distinct(values: Int64) -> Int64:
    """The distinct values, ascending: ``np.unique``, which hashes and takes 80 times as long."""
    if np.all(values[1:] > values[:-1]):
        return values
    ordered = np.sort(values)
    found: Int64 = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return found


def repeats(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """[n] which rows are equal to an earlier row in all columns."""
    order = np.lexsort(columns)  # stable
    again = np.zeros(len(order), bool)
    same = [column[order][1:] == column[order][:-1] for column in columns]
    again[order[1:][np.logical_and.reduce(same)]] = True
    return again

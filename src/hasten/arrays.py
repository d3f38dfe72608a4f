"""Ragged arrays in compressed sparse rows (CSR): offsets and flat positions."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
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


def ranges(work: Int64, limit: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive elements with at most this sum, or of a single element."""
    sums = np.append(0, np.cumsum(work))
    start = 0
    while start < len(work):
        last = int(np.searchsorted(sums, sums[start] + limit, "right")) - 1
        stop = max(start + 1, last)
        yield start, stop
        start = stop


def matches(queries: NDArray[Any], keys: NDArray[Any]) -> tuple[Int64, Int64]:
    """All pairs (index into wanted, index into keys) with the same key; keys are ascending."""
    # neighboring searches read the same memory: 10 times as fast for millions of keys
    order = np.argsort(queries, kind="stable")
    ascending, begin, end = queries[order], np.empty_like(order), np.empty_like(order)
    begin[order] = np.searchsorted(keys, ascending, "left")
    end[order] = np.searchsorted(keys, ascending, "right")
    lengths = end - begin
    row = np.repeat(np.arange(len(queries), dtype=np.int64), lengths)
    first = np.repeat(begin - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return row, np.arange(len(row), dtype=np.int64) + first


def among(queries: Int64, keys: Int64) -> NDArray[np.bool_]:
    """[n] which of the wanted are keys; keys are ascending."""
    order = np.argsort(queries, kind="stable")  # as in matches
    ascending, is_among = queries[order], np.zeros(len(queries), bool)
    if len(keys):
        place = np.minimum(np.searchsorted(keys, ascending), len(keys) - 1)
        is_among[order] = keys[place] == ascending
    return is_among


def pair_mask(row: Int64, value: Int64, rows: int, values: Int64) -> NDArray[np.bool_]:
    """[rows, len(values)] which (row, value) occur among the pairs; values are ascending."""
    column = np.minimum(np.searchsorted(values, value), len(values) - 1)
    matches = values[column] == value
    mask = np.zeros((rows, len(values)), bool)
    mask[row[matches], column[matches]] = True
    return mask


def distinct(values: Int64) -> Int64:
    """The distinct values, ascending: ``np.unique``, which hashes and takes 80 times as long."""
    if np.all(values[1:] > values[:-1]):
        return values
    ordered = np.sort(values)
    distinct_values: Int64 = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return distinct_values


def encoded(values: Int64, count: int) -> tuple[Int64, NDArray[np.int32]]:
    """The distinct values of 0..count-1, ascending, and the place of each value among them."""
    if count > 8 * len(values):
        distinct_values, places = np.unique(values, return_inverse=True)
        return distinct_values, places.reshape(-1).astype(np.int32)
    flags = np.zeros(count, bool)
    flags[values] = True
    return np.flatnonzero(flags), (np.cumsum(flags, dtype=np.int32) - np.int32(1))[values]


def packed(*columns: NDArray[Any]) -> Int64 | None:
    """One number a row, ordered as the rows are by the columns, the first column first.

    None: the columns are not all whole numbers from 0, or the numbers would not fit into 64 bits.
    """
    whole = all(c.dtype.kind in "iu" and c.min(initial=0) >= 0 for c in columns)
    sizes = [int(c.max(initial=0)) + 1 for c in columns] if whole else []
    if not whole or prod(sizes) >= 2**63:
        return None
    keys = columns[0].astype(np.int64)
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        keys *= size
        keys += column.astype(np.int64, copy=False)
    return keys


def order_by(*columns: NDArray[Any]) -> Int64:
    """The stable order of rows by the columns, the first column first.

    ``np.lexsort`` of the reversed columns, which takes 3 times as long where they can be packed.
    """
    keys = packed(*columns)
    return np.lexsort(columns[::-1]) if keys is None else np.argsort(keys, kind="stable")


def maybe_among(values: Int64, queries: Int64) -> NDArray[np.bool_]:
    """[n] whether each value may be one of ``wanted``: no false negatives, few false positives.

    Without sorting or searching ``values``: both are hashed into a table of flags.
    """
    bits = min(26, max(10, 4 + len(queries).bit_length()))

    def places(numbers: Int64) -> NDArray[np.uint64]:
        return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)

    flags = np.zeros(2**bits, bool)
    flags[places(queries)] = True
    return flags[places(values)]


def first_places(values: Int64, count: int) -> Int64:
    """[count] the first place of each of the values 0..count-1, or len(values) where it is none."""
    places = np.full(count, len(values), np.int64)
    np.minimum.at(places, values, np.arange(len(values)))
    return places


def repeats(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """[n] which rows are equal to an earlier row in all columns."""
    order = order_by(*columns)
    is_repeated = np.zeros(len(order), bool)
    same = [column[order][1:] == column[order][:-1] for column in columns]
    is_repeated[order[1:][np.logical_and.reduce(same)]] = True
    return is_repeated

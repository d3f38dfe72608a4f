"""Second pass of ``data prepare``: divide rows into ranges of users, and sort each in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import InteractionOptions
from hasten.data.columns import times
from hasten.data.columns.times import TimeColumn
from hasten.data.event_store.collect import Collected
from hasten.data.interactions import clean
from hasten.data.readers.ahead import ahead, workers

#: rows that are sorted together; a user with more is a range of its own
BUCKET = 1 << 19
#: rows that are divided together
_DIVIDED = 1 << 20
Places = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Sorted:
    """The rows of a range of users, sorted by user, then time, then the order of the files.

    events: without the duplicates that are left out; in_order: whether every user's times were in
    the order of the files; duplicates: how many rows repeat another.
    """

    events: clean.Columns
    in_order: bool
    duplicates: int


def boundaries(counts: Int64) -> Int64:
    """The first users of ranges with about ``BUCKET`` rows each, and the number of users."""
    ends = np.cumsum(counts)
    size = max(BUCKET, int(ends[-1]) >> 12)
    return np.append(np.flatnonzero(np.diff(ends // size, prepend=-1)), len(counts))


def divide(collected: Collected, users: Places, items: Places, counts: Int64) -> Int64:
    """Write the rows of each range of users together, in the order of the files.

    users, items: the position of every number that the first pass gave out; counts: int64 [U] the
    rows of each user. Replaces the scratch files of the first pass. Returns the first users of the
    ranges.
    """
    first, kind = boundaries(counts), collected.time_type
    range_of = np.repeat(np.arange(len(first) - 1, dtype=np.uint16), np.diff(first))
    starts = np.concatenate([[0], np.cumsum(counts)])[first[:-1]]
    names = ("user", "item") if kind is None else ("user", "item", "time")

    def sorted_chunk(chunk: tuple[int, int, str]) -> tuple[Int64, list[NDArray[Any]]]:
        """How many rows of a chunk each range has, and the columns in the order of the ranges."""
        begin, end, dtype = chunk
        kinds = ("int32", "int32", dtype)
        user, item, *time = (
            _load(collected.folder / name, type_, begin, end)
            for name, type_ in zip(names, kinds, strict=False)
        )
        user, item = users[user], items[item]
        where = range_of[user]
        order = np.argsort(where, kind="stable")  # of 16 bits: a radix sort
        columns = [user, item, *(t.astype(kind, copy=False) for t in time)]
        return np.bincount(where, minlength=len(starts)), [column[order] for column in columns]

    written = [(collected.folder / f"{name}.ranges").open("wb") for name in names]
    try:
        for sizes, columns in ahead(sorted_chunk, _chunks(collected), workers()):
            stops = np.cumsum(sizes)
            for column, file in zip(columns, written, strict=True):
                for number in np.flatnonzero(sizes).tolist():
                    part = column[stops[number] - sizes[number] : stops[number]]
                    os.pwrite(file.fileno(), part.data, int(starts[number]) * column.itemsize)
            starts += sizes
    finally:
        for stream in written:
            stream.close()
    for name in names:
        (collected.folder / name).unlink()
    return first


def _chunks(collected: Collected) -> Iterator[tuple[int, int, str]]:
    """The rows of the scratch files in order: (begin, end, type of the times)."""
    begin = 0
    for rows, kind in collected.groups:
        end = begin + rows
        for start in range(begin, end, _DIVIDED):
            yield start, min(start + _DIVIDED, end), kind
        begin = end


def _load(path: Path, kind: str, begin: int, end: int) -> NDArray[Any]:
    return np.fromfile(path, kind, end - begin, offset=begin * np.dtype(kind).itemsize)


def sorted_ranges(
    collected: Collected, first: Int64, counts: Int64, options: InteractionOptions
) -> Iterator[Sorted]:
    """The sorted rows of every range of users, which :func:`divide` has written."""
    ends = np.cumsum(counts)[first[1:] - 1]
    ranges = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
    unit = collected.times[0].unit if collected.times else None

    def one(begin_end: tuple[int, int]) -> Sorted:
        folder = collected.folder
        user, item = (_load(folder / f"{n}.ranges", "int32", *begin_end) for n in ("user", "item"))
        time = key = None
        if collected.time_type is not None:
            values = _load(folder / "time.ranges", collected.time_type, *begin_end)
            time, key, _ = times.unite([TimeColumn(values, unit)], options.time_unit)
        events = clean.Columns(user, item, None, time, key, None)
        order = clean.sort_order(events)
        events = events if order is None else events.take(order)
        repeated = clean.duplicates_of_sorted(events)
        duplicates = int(np.count_nonzero(repeated))
        if duplicates and options.duplicates == "drop":
            events = events.take(~repeated)
            order = None if order is None else order[~repeated]
        in_order = order is None or clean.kept_order(order, events.user)
        return Sorted(events, in_order, duplicates)

    return ahead(one, ranges, workers())

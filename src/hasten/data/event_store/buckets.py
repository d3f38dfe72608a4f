"""The second pass: divide the rows into ranges of users that fit into memory, then sort each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import InteractionOptions
from hasten.data.columns import times
from hasten.data.columns.times import TimeColumn
from hasten.data.event_store.collect import Collected
from hasten.data.interactions import clean

#: rows that are sorted together; a user with more is a range of its own
BUCKET = 1 << 21
_WORKERS = 4
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


def divide(found: Collected, users: Places, items: Places, counts: Int64) -> Int64:
    """Write the rows of each range of users together, in the order of the files.

    users, items: the position of every number that the first pass gave out; counts: int64 [U] the
    rows of each user. Replaces the scratch files of the first pass. Returns the first users of the
    ranges.
    """
    first, kind = boundaries(counts), found.time_type
    range_of = np.repeat(np.arange(len(first) - 1, dtype=np.uint16), np.diff(first))
    starts = np.concatenate([[0], np.cumsum(counts)])[first[:-1]]
    names = ("user", "item") if kind is None else ("user", "item", "time")
    read = [(found.folder / name).open("rb") for name in names]
    written = [(found.folder / f"{name}.ranges").open("wb") for name in names]
    try:
        for rows, own in found.groups:
            kinds = (np.int32, np.int32, own)[: len(names)]
            user, item, *time = (
                np.fromfile(file, kind, rows) for file, kind in zip(read, kinds, strict=True)
            )
            user, item = users[user], items[item]
            where = range_of[user]
            order = np.argsort(where, kind="stable")  # of 16 bits: a radix sort
            sizes = np.bincount(where, minlength=len(starts))
            stops = np.cumsum(sizes)
            columns = (user, item, *(t.astype(kind, copy=False) for t in time))
            for column, file in zip(columns, written, strict=True):
                ordered = column[order]
                for number in np.flatnonzero(sizes).tolist():
                    part = ordered[stops[number] - sizes[number] : stops[number]]
                    os.pwrite(file.fileno(), part.data, int(starts[number]) * column.itemsize)
            starts += sizes
    finally:
        for stream in (*read, *written):
            stream.close()
    for name in names:
        (found.folder / name).unlink()
    return first


def sorted_ranges(
    found: Collected, first: Int64, counts: Int64, options: InteractionOptions
) -> Iterator[Sorted]:
    """The sorted rows of every range of users, which :func:`divide` has written."""
    ends = np.cumsum(counts)[first[1:] - 1]
    ranges = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
    unit = found.times[0].unit if found.times else None

    def load(name: str, kind: str, begin: int, end: int) -> NDArray[np.generic]:
        path: Path = found.folder / f"{name}.ranges"
        return np.fromfile(path, kind, end - begin, offset=begin * np.dtype(kind).itemsize)

    def one(begin_end: tuple[int, int]) -> Sorted:
        user, item = (load(name, "int32", *begin_end) for name in ("user", "item"))
        time = key = None
        if found.time_type is not None:
            read = TimeColumn(load("time", found.time_type, *begin_end), unit)  # type: ignore[arg-type]
            time, key, _ = times.unite([read], options.time_unit)
        events = clean.Columns(user, item, None, time, key, None)  # type: ignore[arg-type]
        repeated = clean.duplicate_rows(events)
        duplicates = int(np.count_nonzero(repeated))
        if duplicates and options.duplicates == "drop":
            events = events.take(~repeated)
        return Sorted(*clean.ordered(events), duplicates)

    workers = min(_WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(ranges), workers):  # so many are in memory at a time
            yield from pool.map(one, ranges[start : start + workers])

"""Second pass of ``data prepare``: divide rows into ranges of users, and sort each in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import InteractionOptions
from hasten.data.columns import times
from hasten.data.columns.times import TimeColumn
from hasten.data.event_store.collect import Collected
from hasten.data.interactions import clean
from hasten.data.store_folder.buckets import Buckets, load, spans

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


def divide(collected: Collected, users: Places, items: Places, counts: Int64) -> Buckets:
    """The rows of each range of users together, in the order of the files.

    users, items: the position of every number that the first pass gave out; counts: int64 [U] the
    rows of each user. Replaces the scratch files of the first pass.
    """
    kind, folder = collected.time_type, collected.folder
    types: dict[str, Any] = {"user": np.int32, "item": np.int32}
    types |= {} if kind is None else {"time": kind}

    def columns_of(chunk: tuple[int, int, str]) -> tuple[Places, list[NDArray[Any]]]:
        begin, end, dtype = chunk
        kinds = ("int32", "int32", dtype)
        user, item, *time = (
            load(folder / name, type_, begin, end)
            for name, type_ in zip(types, kinds, strict=False)
        )
        user = users[user]
        return user, [user, items[item], *time]

    divided = Buckets(folder / "ranges", types, counts)
    divided.fill(_chunks(collected), columns_of)
    for name in types:
        (folder / name).unlink()
    return divided


def _chunks(collected: Collected) -> Iterator[tuple[int, int, str]]:
    """The rows of the scratch files in order: (begin, end, type of the times)."""
    begin = 0
    for rows, kind in collected.groups:
        for start, stop in spans(begin, begin + rows):
            yield start, stop, kind
        begin += rows


def sorted_ranges(
    collected: Collected, divided: Buckets, options: InteractionOptions
) -> Iterator[Sorted]:
    """The sorted rows of every range of users, which :func:`divide` has written."""
    unit = collected.times[0].unit if collected.times else None

    def one(_: int, columns: list[NDArray[Any]]) -> Sorted:
        user, item, *rest = columns
        time = key = None
        if rest:
            time, key, _notes = times.unite([TimeColumn(rest[0], unit)], options.time_unit)
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

    return divided.map(one)

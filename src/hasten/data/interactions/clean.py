"""Clean interactions: rating threshold, duplicates, k-core, sorting by user and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, repeats
from hasten.data.columns.checks import counted
from hasten.data.columns.counter_random import mix
from hasten.errors import DataError

Bool = NDArray[np.bool_]
#: rows that are numbered at a time
_BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class Columns:
    """Interactions as parallel columns [n]; user and item are codes, key is a finer time.

    row: their rows in the files, if there are event features.
    """

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    rating: NDArray[np.float32] | None
    time: Int64 | None
    key: Int64 | None
    part: NDArray[np.int8] | None
    row: Int64 | None = None

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: Bool | Int64) -> Columns:
        """The given rows (a mask or positions)."""
        columns = (self.user, self.item, self.rating, self.time, self.key, self.part, self.row)
        taken: list[Any] = [None if column is None else column[rows] for column in columns]
        return Columns(*taken)

    def arranged(self, order: Int64) -> Columns:
        """The rows in this order, each once: in the memory of columns that can be written."""

        def arrange(column: NDArray[Any] | None) -> NDArray[Any] | None:
            if column is None or not column.flags.writeable or not column.flags.owndata:
                return None if column is None else column[order]
            column[:] = column[order]
            return column

        columns = (self.user, self.item, self.rating, self.time, self.key, self.part, self.row)
        arranged: list[Any] = [arrange(column) for column in columns]
        return Columns(*arranged)


def rated_at_least(events: Columns, threshold: float) -> Columns:
    """The interactions with at least this rating.

    Raises:
        DataError: there are no ratings, or none is high enough.
    """
    if events.rating is None:
        raise DataError(f"data.min_rating={threshold:g}, but the data have no ratings")
    kept = events.take(events.rating >= threshold)
    if not len(kept):
        raise DataError(
            f"data.min_rating={threshold:g} leaves no event; the highest rating is "
            f"{float(events.rating.max()):g}"
        )
    return kept


def duplicate_rows(events: Columns) -> Bool:
    """Which rows repeat an earlier row's user, item and time (user and item without times).

    Found by sorting a 64-bit hash of the three; rows whose hashes agree are compared exactly.
    """
    hashes = mix(events.user.astype(np.uint64) << np.uint64(32) | events.item.astype(np.uint64))
    if events.time is not None:
        hashes ^= (events.time if events.key is None else events.key).view(np.uint64)
        hashes = mix(hashes)
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    mask = np.zeros(len(events), bool)
    if not len(repeated):
        return mask
    candidates = np.flatnonzero(np.isin(hashes, repeated))
    keys: list[NDArray[Any]] = [events.item[candidates], events.user[candidates]]
    if events.time is not None:
        keys.append((events.time if events.key is None else events.key)[candidates])
    mask[candidates[repeats(*keys)]] = True
    return mask


def duplicates_of_sorted(events: Columns) -> Bool:
    """:func:`duplicate_rows` of sorted rows: only those of one user and time can be equal."""
    time = events.time if events.key is None else events.key
    if time is None:
        return duplicate_rows(events)
    equal = (events.user[1:] == events.user[:-1]) & (time[1:] == time[:-1])
    near = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    mask = np.zeros(len(events), bool)
    if len(near):
        mask[near] = duplicate_rows(events.take(near))
    return mask


def without_duplicates(
    events: Columns, policy: Literal["keep", "drop", "error"]
) -> tuple[Columns, int]:
    """The interactions under the policy, and the number of rows that repeat an earlier one.

    Raises:
        DataError: the policy is error and there are duplicates.
    """
    mask = duplicate_rows(events)
    count = int(np.count_nonzero(mask))
    if not count or policy == "keep":
        return events, count
    if policy == "error":
        raise DataError(
            f"{counted(count, 'duplicate event')}: repeating an earlier (user, item, time); "
            "--set data.duplicates=drop or keep"
        )
    return events.take(~mask), count


def core(events: Columns, k: int, users: int, items: int) -> Columns:
    """The k-core: repeatedly drop users and items with fewer than k interactions.

    Raises:
        DataError: no interaction is left.
    """
    while len(events):
        enough_user = np.bincount(events.user, minlength=users) >= k
        enough_item = np.bincount(events.item, minlength=items) >= k
        keep = enough_user[events.user] & enough_item[events.item]
        if keep.all():
            return events
        events = events.take(keep)
    raise DataError(f"data.k_core={k} leaves no event")


def stable_order(key: Int64, limit: int, *, reuse: bool = False) -> Int64:
    """``np.argsort(key, kind="stable")`` of keys in [0, limit), several times faster.

    reuse: the memory of the key may be used, so that it does not hold the key afterwards.

    numpy sorts whole 64-bit values much faster than it argsorts: so the bits of the key, as many
    as there is room for, are sorted together with the position, the low ones first.
    """
    position_bits = max(1, (len(key) - 1).bit_length())
    room = 63 - position_bits
    order = np.arange(0 if limit > 1 else len(key), dtype=np.int64)
    for shift in range(0, (limit - 1).bit_length(), room):
        is_last = shift + room >= (limit - 1).bit_length()
        packed = (key if reuse and is_last else key.copy()) if shift == 0 else key[order]
        if shift and is_last:
            del key
        packed >>= shift
        packed &= (1 << room) - 1
        packed <<= position_bits
        for start in range(0, len(packed), _BLOCK):
            block = packed[start : start + _BLOCK]
            block |= np.arange(start, start + len(block))
        packed.sort()
        packed &= (1 << position_bits) - 1
        order = packed if shift == 0 else order[packed]
    return order


def sort_order(events: Columns) -> Int64 | None:
    """The order by user, then time, then the order of the file; None: they are in it."""
    time = events.time if events.key is None else events.key
    if time is not None and np.all(time[1:] >= time[:-1]):
        time = None  # a stable order by user keeps it
    if time is None:
        if np.all(events.user[1:] >= events.user[:-1]):
            return None
        users = events.user.astype(np.int64)
        users -= users.min()
        return stable_order(users, int(users.max()) + 1, reuse=True)
    low, first = int(time.min()), int(events.user.min())
    span, count = int(time.max()) - low + 1, int(events.user.max()) - first + 1
    if span * count >= 2**63:
        return np.lexsort((time, events.user))
    key = events.user.astype(np.int64)
    key -= first
    key *= span
    key += time
    key -= low
    return None if np.all(key[1:] >= key[:-1]) else stable_order(key, span * count, reuse=True)


def kept_order(order: Int64, user: NDArray[np.int32]) -> bool:
    """Whether rows that have been sorted by user (in this order) were in order for each user."""
    return not bool(np.any((order[1:] < order[:-1]) & (user[1:] == user[:-1])))


def ordered(events: Columns) -> tuple[Columns, bool]:
    """Sorted by user, then time, then file order; whether each user's times were in order."""
    order = sort_order(events)
    if order is None:
        return events, True
    events = events.arranged(order)
    return events, kept_order(order, events.user)

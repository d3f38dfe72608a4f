"""Splits at two times for all users, rolling windows, and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hasten.arrays import Int64
from hasten.data.columns.times import show
from hasten.data.interactions.clean import Columns
from hasten.data.splits import Parts, Shares
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID
from hasten.errors import DataError


def timed(events: Columns, option: str) -> Int64:
    """The times. Raises DataError, which names the option that needs them, if there are none."""
    if events.time is None:
        raise DataError(f"data.{option} needs times, but the data have none")
    return events.time


def before_window_end(events: Columns, window: float, fold: int) -> tuple[Columns, int]:
    """The events before the end of the test period, and this end.

    The period ends ``fold`` windows before the last event. Raises DataError if none is left.
    """
    time = timed(events, "time_window")
    end = int(time.max()) + 1 - int(fold * window)
    if fold:
        events = events.take(time < end)
    if not len(events):
        raise DataError(f"data.fold={fold}: no event is that many windows before the last one")
    return events, end


def by_time(events: Columns, shares: Shares, window: float | None, end: int) -> tuple[Parts, str]:
    """Train before valid before test, at the same two times for all users.

    shares: of all events, without a window; end: of the last window. Raises DataError if a part is
    empty or there are no times.
    """
    time = timed(events, "split=time")
    return by_shares(time, shares) if window is None else by_window(time, window, end)


def by_window(time: Int64, window: float, end: int) -> tuple[Parts, str]:
    """The last window before ``end`` is the test, the one before it the validation."""
    return _at(time, *window_times(window, end), show(end - 1))


def window_times(window: float, end: int) -> tuple[int, int]:
    """When the validation and the test begin."""
    return int(end - 2 * window), int(end - window)


def by_shares(time: Int64, shares: Shares) -> tuple[Parts, str]:
    """Two times that leave these shares of all events; events at the same time stay together."""
    ordered = np.sort(time)
    cuts = [int(len(time) * share + 0.5) for share in (shares[0], shares[0] + shares[1])]
    valid, test = (int(ordered[min(cut, len(time) - 1)]) for cut in cuts)
    return _at(time, valid, test, show(int(ordered[-1])))


def _at(time: Int64, valid: int, test: int, last: str) -> tuple[Parts, str]:
    part = np.full(len(time), TRAIN, np.int8)
    part[time >= valid] = VALID
    part[time >= test] = TEST
    return part, describe([int(np.sum(part == p)) for p in range(3)], valid, test, last)


def describe(sizes: Sequence[int], valid: int, test: int, last: str) -> str:
    """The split in words. sizes: of the three parts. Raises DataError if one is empty."""
    for size, name in zip(sizes, PART_NAMES, strict=True):
        if not size:
            raise DataError(
                f"data.split=time leaves no {name} event: valid would begin at {show(valid)}, test "
                f"at {show(test)}, and the events end at {last}"
            )
    return f"global time split, valid from {show(valid)}, test from {show(test)} to {last}"


def sessions(events: Columns, users: pa.Array, gap: float) -> tuple[Columns, pa.Array]:
    """Sessions in place of users: a pause longer than ``gap`` seconds begins a new one.

    events: sorted by user and time. Returns them with codes of sessions as users, and the labels
    ``user#number``, from 1.
    """
    time, user = timed(events, "session_gap"), events.user
    begins = np.ones(len(user), bool)
    begins[1:] = (user[1:] != user[:-1]) | (time[1:] - time[:-1] > gap)
    code = (np.cumsum(begins) - 1).astype(np.int32)
    owner = user[begins]
    first = np.ones(len(owner), bool)
    first[1:] = owner[1:] != owner[:-1]
    number = np.arange(len(owner)) - np.flatnonzero(first)[np.cumsum(first) - 1] + 1
    texts = (users.take(pa.array(owner)).cast(pa.string()), pa.array(number).cast(pa.string()))
    return replace(events, user=code), pc.binary_join_element_wise(*texts, "#")

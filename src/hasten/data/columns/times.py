"""Turn columns of times into Unix seconds and a sort key, with notes on suspicious times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.errors import DataError

TimeUnit = Literal["s", "ms", "us", "ns"]
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
#: later than any real time in seconds (the year 5138), earlier than 1973 in milliseconds
_ABSURD = 1e11
_YEAR = 365.25 * 86400


@dataclass(frozen=True, eq=False)
class TimeColumn:
    """Times since 1970, int64 or float64 [n]. unit None: as ``data.time_unit`` says."""

    values: NDArray[np.int64] | NDArray[np.float64]
    unit: TimeUnit | None = None


def joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The columns concatenated; a single one is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def unite(columns: Sequence[TimeColumn], unit: TimeUnit) -> tuple[Int64, Int64 | None, list[str]]:
    """Times of all files: unix seconds, a finer key to sort by (None: the seconds), notes.

    unit: of columns without a unit of their own (numbers).

    Raises:
        DataError: some files hold dates and others numbers.
    """
    units = {column.unit for column in columns}
    if len(units) > 1:
        raise DataError("some files hold dates and others numbers as times: write them alike")
    common = units.pop()
    used = unit if common is None else common
    values = joined([column.values for column in columns])
    notes = []
    if common is not None and unit != "s":
        notes.append(f"data.time_unit={unit} has no effect: the times are dates")
    per_second = PER_SECOND[used]
    if values.dtype.kind == "f":
        key = np.floor(values * (1_000 if used == "s" else 1))
        per_second = 1_000 if used == "s" else per_second
        if not np.all(np.abs(key) < 9.2e18):
            raise DataError("times are too large to be unix times")
        ticks = key.astype(np.int64)
    else:
        ticks = values.astype(np.int64, copy=False)
    seconds = ticks if per_second == 1 else ticks // per_second
    notes += _suspicions(seconds, used if common is None else None)
    return seconds, None if per_second == 1 else ticks, notes


def _suspicions(seconds: Int64, unit: TimeUnit | None) -> list[str]:
    low, high = int(seconds.min()), int(seconds.max())
    if low == high:
        return [f"all times are equal ({show(low)}): the order of the file is the order in time"]
    notes = []
    if unit is not None and high > _ABSURD:
        middle = float(np.median(seconds[:: max(1, len(seconds) // 10_000)]))
        finer = next(
            (u for u, n in PER_SECOND.items() if middle * PER_SECOND[unit] / n < _ABSURD), "ns"
        )
        if middle > _ABSURD:
            notes.append(
                f"times reach {show(high)}: they look like {finer}, not {unit} "
                f"(--set data.time_unit={finer})"
            )
        else:
            notes.append(f"times reach {show(high)}: units seem to be mixed")
    elif unit in ("ms", "us", "ns") and 0 < high < _YEAR * 2:
        notes.append(f"times end at {show(high)}: they look like s, not {unit}")
    return notes


def show(seconds: int) -> str:
    """A time as a date, or as a number if it is out of the calendar's range."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"

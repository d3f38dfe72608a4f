"""Splits that the data already contain (``data.split=given``), and overlaps between the parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, distinct
from hasten.data.columns.checks import counted
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID
from hasten.errors import DataError

Parts = NDArray[np.int8]


def given_parts(part: Parts | None, noun: str, remedy: str) -> tuple[Parts, str]:
    """The split that the files or a column give. noun: "event" or "triple".

    Raises:
        DataError: there is none, or no training row.
    """
    if part is None:
        raise DataError(f"data.split=given, but the data name no parts: give {remedy}")
    if not np.any(part == TRAIN):
        raise DataError(f"the given split has no training {noun}")
    names = [name for number, name in enumerate(PART_NAMES) if np.any(part == number)]
    return part, f"given parts ({', '.join(names)})"


def overlaps(keys: Int64, part: Parts, noun: str, of: str, notes: list[str]) -> dict[str, int]:
    """How many keys are in two parts; notes are appended to ``notes``."""
    in_part = [distinct(keys[part == p]) for p in (TRAIN, VALID, TEST)]
    counts = {}
    for first, second in ((TRAIN, VALID), (TRAIN, TEST), (VALID, TEST)):
        count = int(np.isin(in_part[second], in_part[first], assume_unique=True).sum())
        both = f"{PART_NAMES[first]} and {PART_NAMES[second]}"
        counts[f"{noun}s_in_{both.replace(' ', '_')}"] = count
        if count:
            notes.append(f"overlap: {counted(count, noun)}{of} in both {both}")
    return counts

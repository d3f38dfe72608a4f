"""Every rule about the cells of a data file, and the message of every refusal.

The bulk of a file is read and checked by columns; only when that fails is it gone through row by
row with the rules below, to say which rows, what they hold and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from hasten.errors import DataError

MAX_ID = 2**31 - 1
MAX_TIME = 9.2e18
MAX_RATING = 3.4028234663852886e38
SHOWN = 5

#: any: not empty; numbers: whole, 0..MAX_ID; labels: printable text
IdRule = Literal["any", "numbers", "labels"]
#: number: unix time; date: ISO without a zone; zoned: ISO with a zone
TimeRule = Literal["number", "date", "zoned"]
#: the roles of columns that hold ids
ID_ROLES = ("user", "item", "head", "relation", "tail", "head_type", "tail_type")
#: the roles of columns that hold names, which may be anything
NAME_ROLES = ("head_name", "tail_name")

WHOLE_PATTERN = r"^[0-9]+(\.0*)?$"
NUMBER_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
MISSING_WORDS = ("nan", "null", "none", "na", "n/a", "nil", "undefined", "inf", "-inf")
_WHOLE = re.compile(WHOLE_PATTERN)
_NUMBER = re.compile(NUMBER_PATTERN)
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,6})?)?)?)?(?P<zone>Z|[+-]\d\d(:?\d\d)?)?",
    re.ASCII,
)


@dataclass(frozen=True)
class Problem:
    """One row that cannot be used: where it is ("line 7"), its text, and why."""

    where: str
    text: str
    reason: str


@dataclass(frozen=True)
class Rules:
    """What the cells of a row must look like.

    header: the texts of the header's id cells, refused as ids (two files were concatenated).
    missing: whether words such as "nan" are accepted as labels.
    """

    user: IdRule = "any"
    item: IdRule = "any"
    head: IdRule = "any"
    relation: IdRule = "any"
    tail: IdRule = "any"
    head_type: IdRule = "any"
    tail_type: IdRule = "any"
    time: TimeRule = "number"
    header: frozenset[str] = frozenset()
    missing: bool = False

    def problem(self, cells: Mapping[str, str]) -> str | None:
        """Why the cells (role -> text) of a row cannot be used, or None."""
        for role, text in cells.items():
            if role in ID_ROLES:
                reason = self.id_problem(role, text, getattr(self, role))
            elif role == "rating":
                reason = rating_problem(text)
            elif role == "time":
                reason = time_problem(text, self.time)
            elif role in NAME_ROLES:
                reason = None
            else:
                reason = None if part_of(text) is not None else f"{text!r} names no part"
            if reason is not None:
                return reason
        return None

    def id_problem(  # noqa: PLR0911 - one return a rule
        self, role: str, text: str, rule: IdRule
    ) -> str | None:
        """Why a text is no id under the rule, or None."""
        text = text.strip()
        if not text:
            return f"the {role} id is empty"
        if text in self.header:
            return f"{role} id {text!r}: the header again (concatenated files?)"
        if rule == "any":
            return None
        if rule == "numbers":
            if not _WHOLE.match(text):
                return f"{role} id {printable(text)} is not a whole number from 0"
            digits = text.partition(".")[0].lstrip("0")
            if len(digits) > 10 or int(digits or "0") > MAX_ID:
                return f"{role} id {printable(text)} is larger than {MAX_ID} (2^31-1)"
            return None
        if not text.isprintable():
            return f"{role} id {printable(text)} holds characters that cannot be printed"
        if not self.missing and text.lower() in MISSING_WORDS:
            return f"{role} id {text!r} looks like a missing value"
        return None


def rating_problem(text: str) -> str | None:
    """Why a text is no rating, or None."""
    text = text.strip()
    if not text:
        return "the rating is empty"
    if not _NUMBER.match(text):
        if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            return f"rating {text!r} is not finite"
        return f"rating {printable(text)} is not a number"
    if abs(float(text)) > MAX_RATING:
        return f"rating {printable(text)} is too large"
    return None


def time_problem(text: str, rule: TimeRule) -> str | None:  # noqa: PLR0911 - one a rule
    """Why a text is no time under the rule, or None."""
    text = text.strip()
    if not text:
        return "the time is empty"
    if rule == "number":
        if not _NUMBER.match(text) or text.startswith("+"):
            return f"time {printable(text)} is not a number"
        if not abs(float(text)) <= MAX_TIME:
            return f"time {printable(text)} is out of range"
        return None
    if time_rule(text) != rule:
        zone = "with a zone" if rule == "zoned" else "without a zone"
        return f"time {printable(text)} is no ISO date {zone}, as the first times are"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return f"time {printable(text)} is no date of the calendar"
    return None


def time_rule(text: str) -> TimeRule:
    """Which kind of time a text looks like (number where it looks like none)."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return "number"
    return "zoned" if match["zone"] else "date"


_PARTS = {
    "0": 0, "train": 0, "training": 0,
    "1": 1, "valid": 1, "validation": 1, "val": 1, "dev": 1,
    "2": 2, "test": 2,
}  # fmt: skip


def part_of(text: str) -> int | None:
    """TRAIN, VALID or TEST for the text of a part column, None where it is none of them."""
    return _PARTS.get(text.strip().lower())


def looks_numeric(text: str) -> bool:
    """Whether a cell reads as a number."""
    return _NUMBER.match(text.strip()) is not None


def counted(count: int, noun: str) -> str:
    """The number and its noun: "1 event", "2,000 events"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str, limit: int = 80) -> str:
    """The text in quotes, control characters escaped, cut at ``limit`` characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return repr(cut)


def refusal(
    name: str, problems: Iterable[Problem], expected: str, remedy: str, cause: str
) -> DataError:
    """The error for a file with problems: the first few, their total, what was expected.

    cause: what the bulk reader objected to; said when going through the rows finds nothing.
    """
    shown: list[Problem] = []
    total = 0
    for problem in problems:
        total += 1
        if len(shown) < SHOWN:
            shown.append(problem)
    if not shown:
        return DataError(f"{name}: {cause}\nexpected: {expected}")
    rows = "row" if shown[0].where.startswith("row") else "line"
    lines = [f"{name}: {counted(total, rows)} cannot be used:"]
    lines += [f"  {p.where}: {p.reason}: {printable(p.text)}" for p in shown]
    if total > len(shown):
        lines.append(f"  ... and {total - len(shown)} more")
    lines.append(f"expected: {expected}")
    if remedy:
        lines.append(remedy)
    return DataError("\n".join(lines))

"""The rules for the cells of a data file, and the error message for rows that break them.

Files are read and checked column by column. Only when a column fails is the file read again row by
row with the rules below, to report which rows are wrong, what they hold and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Literal

import numpy as np

from hasten.arrays import Int64
from hasten.errors import DataError

MAX_ID = 2**63 - 1
MAX_TIME = 9.2e18
MAX_RATING = 3.4028234663852886e38
SHOWN = 5

#: any: not empty; numbers: whole, of 64 bits; labels: printable text
IdRule = Literal["any", "numbers", "labels"]
#: number: unix time; date: ISO without a zone; zoned: ISO with a zone
TimeRule = Literal["number", "date", "zoned"]
#: the roles of columns that hold ids
ID_ROLES = ("user", "item", "head", "relation", "tail", "head_type", "tail_type")
#: the roles of columns that hold names, which may be anything
NAME_ROLES = ("head_name", "tail_name")
#: what the roles of event features begin with; the name of the column follows
FEATURE = "feature "

WHOLE_PATTERN = r"^(-?[1-9][0-9]*|0[0-9]*)(\.0*)?$"
NUMBER_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
MISSING_WORDS = ("nan", "null", "none", "na", "n/a", "nil", "undefined", "inf", "-inf")
_WHOLE = re.compile(WHOLE_PATTERN)
_NUMBER = re.compile(NUMBER_PATTERN)
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,6})?)?)?)?(?P<zone>Z|[+-]\d\d(:?\d\d)?)?",
    re.ASCII,
)


@dataclass(frozen=True)
class Rules:
    """The form that the cells of a row must have.

    ids: role -> rule for its ids, "any" where a role is not listed.
    header: role -> texts of the header's cell, refused as ids (two files were concatenated).
    missing: whether words such as "nan" are accepted as labels.
    """

    ids: Mapping[str, IdRule] = field(default_factory=dict)
    time: TimeRule = "number"
    header: Mapping[str, frozenset[str]] = field(default_factory=dict)
    missing: bool = False

    def problem(self, cells: Iterable[tuple[str, str]]) -> str | None:
        """Why the cells (role and text) of a row cannot be used, or None."""
        for role, text in cells:
            if role in ID_ROLES:
                reason = self.id_problem(role, text)
            elif role == "rating":
                reason = rating_problem(text)
            elif role == "time":
                reason = time_problem(text, self.time)
            elif role in NAME_ROLES or role.startswith(FEATURE):
                reason = None
            else:
                reason = None if part_of(text) is not None else f"{text!r} names no part"
            if reason is not None:
                return reason
        return None

    def id_problem(self, role: str, text: str) -> str | None:  # noqa: PLR0911 - one return per rule
        """Why a text is not an id of the role, or None."""
        rule = self.ids.get(role, "any")
        text = text.strip()
        if not text:
            return f"the {role} id is empty"
        if text in self.header.get(role, ()):
            return f"{role} id {text!r}: the header again (concatenated files?)"
        if rule == "any":
            return None
        if rule == "numbers":
            if not _WHOLE.match(text):
                return f"{role} id {printable(text)} is not a whole number"
            digits = text.partition(".")[0].lstrip("-0")
            if len(digits) > 19 or int(digits or "0") > MAX_ID + text.startswith("-"):
                return f"{role} id {printable(text)} does not fit into 64 bits"
            return None
        if not text.isprintable():
            return f"{role} id {printable(text)} holds characters that cannot be printed"
        if not self.missing and text.lower() in MISSING_WORDS:
            return f"{role} id {text!r} looks like a missing value"
        return None


def rating_problem(text: str) -> str | None:
    """Why a text is not a rating, or None."""
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


def time_problem(text: str, rule: TimeRule) -> str | None:  # noqa: PLR0911 - one return per rule
    """Why a text is not a time under the rule, or None."""
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
    """The kind of time that a text looks like; number if it is not a date."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return "number"
    return "zoned" if match["zone"] else "date"


def first_rule(texts: Iterable[str | None]) -> TimeRule:
    """The rule for a column of times that begins with these texts; dates before numbers."""
    kinds = {time_rule(text or "") for text in texts}
    return "zoned" if "zoned" in kinds else "date" if "date" in kinds else "number"


_PARTS = {
    "0": 0, "train": 0, "training": 0,
    "1": 1, "valid": 1, "validation": 1, "val": 1, "dev": 1,
    "2": 2, "test": 2,
}  # fmt: skip


def part_of(text: str) -> int | None:
    """TRAIN, VALID or TEST for a cell of a part column, None for any other text."""
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


#: where a row is ("line 7"), its text, and its cells (role and text) or why it has none
Row = tuple[str, str, Sequence[tuple[str, str]] | str]
#: where a row is, its text, and why it cannot be used
Problem = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Rows:
    """A file or table that can be read row by row, to report rows that cannot be used.

    source: its name in messages; expected: the form of a good row, in words; rules: those that do
    not depend on the ids; read: all rows.
    """

    source: str
    expected: str
    rules: Rules
    read: Callable[[], Iterator[Row]]

    def problems(self, rules: Rules) -> Iterator[Problem]:
        """Every row that breaks the rules."""
        for where, text, cells in self.read():
            reason = cells if isinstance(cells, str) else rules.problem(cells)
            if reason is not None:
                yield where, text, reason

    def locate(self, rows: Int64) -> Iterator[tuple[str, str]]:
        """("line 7", its text) of the given rows (from 0), in order."""
        left = set(rows.tolist())
        for number, (where, text, _) in enumerate(self.read()):
            if number in left:
                left.remove(number)
                yield where, text
            if not left:
                return

    def refused(self, cause: str) -> DataError:
        """The error for the rows that break the file's own rules; cause: if there are none."""
        return broken_rules([self], self.rules, cause)


def broken_rules(sources: Sequence[Rows], rules: Rules, cause: str, remedy: str = "") -> DataError:
    """The error for the rows of the files that break the rules.

    cause: what failed while reading by columns; reported if no single row breaks a rule.
    """
    problems = chain.from_iterable(source.problems(rules) for source in sources)
    shown = list(islice(problems, SHOWN))
    return _refusal(sources, shown, len(shown) + sum(1 for _ in problems), cause, remedy)


def bad_rows(
    sources: Sequence[tuple[Rows, int]],
    rows: Int64,
    reason: str | Callable[[int], str],
    remedy: str,
) -> DataError:
    """The error for given rows. sources: files with their number of rows; rows: over all files."""
    first = np.sort(rows)[:SHOWN]
    shown: list[Problem] = []
    start = 0
    for source, count in sources:
        source_rows = first[(first >= start) & (first < start + count)]
        for row, (where, text) in zip(
            source_rows.tolist(), source.locate(source_rows - start), strict=True
        ):
            place = f"{source.source}, {where}" if len(sources) > 1 else where
            shown.append((place, text, reason if isinstance(reason, str) else reason(row)))
        start += count
    return _refusal([source for source, _ in sources], shown, len(rows), "", remedy)


def _refusal(
    sources: Sequence[Rows], shown: Sequence[Problem], total: int, cause: str, remedy: str
) -> DataError:
    """The error that lists the first problems, their number, and the expected form."""
    name, expected = ", ".join(source.source for source in sources), sources[0].expected
    if not shown:
        return DataError(f"{name}: {cause}\nexpected: {expected}")
    rows = "row" if shown[0][0].startswith("row") else "line"
    lines = [f"{name}: {counted(total, rows)} cannot be used:"]
    lines += [f"  {where}: {reason}: {printable(text)}" for where, text, reason in shown]
    if total > len(shown):
        lines.append(f"  ... and {total - len(shown)} more")
    lines.append(f"expected: {expected}")
    if remedy:
        lines.append(remedy)
    return DataError("\n".join(lines))

"""Headerless lines: ``user item``, ``user item time`` or ``user item rating time``, also .gz."""

from __future__ import annotations

from collections import Counter

from hasten.config import InteractionOptions
from hasten.data.columns.checks import looks_numeric, time_rule
from hasten.data.columns.text import Sample
from hasten.data.readers import cells, separated
from hasten.data.readers.columns import SYNONYMS, plain, positional_roles
from hasten.data.readers.interface import Claim, Reader, order_note, position_claim
from hasten.errors import DataError

_SEPARATORS = ("::", "\t", ",", ";", "|", cells.BLANKS)
#: larger numbers (from March 1973 in unix seconds) are read as times, smaller ones as ratings
_FIRST_TIME = 1e8
_MIN_SAME_WIDTH_SHARE = 0.9


def _claim(sample: Sample, options: InteractionOptions, named: bool) -> Claim | str:
    separator = cells.fitting(sample.texts[0], cells.separators(options.separator, _SEPARATORS))
    if separator is None:
        return "the first line has one cell only"
    rows = cells.rows_of(sample.texts, separator)
    width, frequency = Counter(len(row) for row in rows).most_common(1)[0]
    if not named:
        if any(not position.strip().isdecimal() for position in options.columns.values()):
            return "data.columns names columns, so there is a header"
        declined = _decline(rows, width, frequency, is_named=bool(options.columns))
        if declined is not None:
            return declined
    notes: tuple[str, ...] = ()
    if options.columns:
        roles = positional_roles(options.columns, width)
    elif not 2 <= width <= 4:
        raise DataError(
            f"{sample.path}: {width} cells a line; user item [rating] [time] are expected, "
            "or say which is which: --set data.columns.user=1 --set data.columns.item=2 ..."
        )
    else:
        roles, notes = _guess(width, [row for row in rows if len(row) == width])
    if width > 2 and len(rows) > 1 and len({row[0] for row in rows}) == len(rows):
        notes = (*notes, "every line has another user; if each is a user with its items, in "
                 "order: --format sequences")  # fmt: skip
    return position_claim(separator, width, roles, (order_note(roles), *notes))


def _decline(  # noqa: PLR0911 - one return a reason
    rows: list[list[str]], width: int, frequency: int, is_named: bool
) -> str | None:
    """Why the rows are not one interaction per line. told: the options name the columns."""
    if _header_like(rows[0]):
        return "the first line looks like a header"
    if is_named:
        return None
    if not 2 <= width <= 4:
        return f"{width} cells a line (2 to 4 are expected)"
    repeated = len({row[0] for row in rows if row}) < len(rows)
    if frequency < _MIN_SAME_WIDTH_SHARE * len(rows) and not repeated:
        return "lines of different lengths, one a user (that is sequences)"
    if width == 2 and not all(looks_numeric(cell) for cell in rows[0]):
        return "two cells of text a line: a header, or ids that are labels?"
    if width > 2 and not (looks_numeric(rows[0][-1]) or time_rule(rows[0][-1]) != "number"):
        return "the last cell of the first line is neither a number nor a date"
    return None


def _guess(width: int, rows: list[list[str]]) -> tuple[dict[str, int], tuple[str, ...]]:
    """The roles of 2, 3 or 4 columns, and notes on what was assumed."""
    roles = {"user": 0, "item": 1}
    if width == 4:
        return roles | {"rating": 2, "time": 3}, ()
    if width == 2:
        return roles, ()
    third = [row[2] for row in rows]
    numbers = [float(cell) for cell in third if looks_numeric(cell)]
    dates = any(time_rule(cell) != "number" for cell in third)
    if dates or (numbers and min(numbers) >= _FIRST_TIME):
        why, role = "dates" if dates else f"from {min(numbers):.0f} on", "time"
    else:
        why, role = f"below {_FIRST_TIME:.0f}", "rating"
    remedy = "--set data.columns.user=1 --set data.columns.item=2 --set data.columns"
    other = "rating" if role == "time" else "time"
    note = f"third column taken as the {role} ({why}); otherwise: {remedy}.{other}=3"
    return roles | {role: 2}, (note,)


def _header_like(row: list[str]) -> bool:
    """Whether a first line names columns: no numbers, and a known name or a name:type cell."""
    known = frozenset().union(*SYNONYMS.values())
    if any(looks_numeric(cell) for cell in row):
        return False
    return any(plain(cell) in known or ":" in cell for cell in row)


LINES = Reader(
    "lines",
    "headerless lines: user item, user item time, or user item rating time; also .gz",
    _claim,
    separated.read,
)

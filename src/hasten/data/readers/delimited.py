"""CSV, TSV and the like, with a header: ``user_id,item_id[,rating][,timestamp]``, plain or .gz."""

from __future__ import annotations

from hasten.config import InteractionOptions
from hasten.data.columns.checks import looks_numeric, part_of
from hasten.data.columns.text import Sample
from hasten.data.readers import cells, separated
from hasten.data.readers.columns import check_distinct, event_features, find_roles
from hasten.data.readers.interface import Claim, Reader, header_claim

_SEPARATORS = (",", "\t", ";", "|", "::", cells.BLANKS)


def _claim(sample: Sample, options: InteractionOptions, named: bool) -> Claim | str:
    number, first = sample.lines[0]
    declined = "the first line has no separator"
    for separator in cells.separators(options.separator, _SEPARATORS):
        header = cells.stripped(first, separator)
        if len(header) < 2:
            continue
        if not named and any(":" in name for name in header):
            declined = "the header has name:type cells (that is recbole)"
            continue
        if any(looks_numeric(name) for name in header):
            declined = "the first line holds numbers, so it is no header"
            continue
        check_distinct(str(sample.path), header)
        numbers = {name.strip() for name in options.columns.values()} - set(header)
        if numbers and all(name.isdecimal() for name in numbers):
            declined = "data.columns gives numbers of columns, so there is no header"
            continue
        roles = find_roles(
            str(sample.path), header, options.columns, features=event_features(options)
        )
        if isinstance(roles, str):
            declined = roles
            continue
        notes: tuple[str, ...] = ()
        if "part" in roles and not _holds_parts(sample, separator, len(header), roles["part"]):
            notes = (f"column {header[roles['part']]!r} does not name parts: ignored",)
            del roles["part"]
        return header_claim(None, header, roles, (separator, header, number), notes)
    return declined


def _holds_parts(sample: Sample, separator: str, width: int, position: int) -> bool:
    rows = cells.rows_of(sample.texts[1:], separator)
    return all(part_of(row[position]) is not None for row in rows if len(row) == width)


DELIMITED = Reader(
    "delimited",
    "CSV, TSV, ... with a header: user_id,item_id[,rating][,timestamp], plain or .gz",
    _claim,
    separated.read,
)

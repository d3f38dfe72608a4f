"""RecBole's atomic files: ``.inter`` with a ``name:type`` header, item names in ``.item``."""

from __future__ import annotations

import re

from hasten.config import InteractionOptions
from hasten.data.columns.text import Sample
from hasten.data.readers import cells, separated
from hasten.data.readers.columns import event_features, find_roles
from hasten.data.readers.interface import Claim, Reader, header_claim
from hasten.errors import DataError

_CELL = re.compile(r"\s*([^:\s][^:]*):(token|float|token_seq|float_seq)\s*")


def atomic_header(line: str, separator: str) -> list[tuple[str, str]] | None:
    """(name, type) of every column, or None if the line is not such a header."""
    matches = [_CELL.fullmatch(cell) for cell in line.split(separator)]
    if len(matches) < 2 or not all(matches):
        return None
    return [(m[1], m[2]) for m in matches if m is not None]


def _claim(sample: Sample, options: InteractionOptions, _: bool) -> Claim | str:
    number, first = sample.lines[0]
    separator = cells.separators(options.separator, ("\t",))[0]
    header = atomic_header(first, separator)
    if header is None:
        return f"no name:type header separated by {cells.separator_name(separator)}"
    names = [name for name, _ in header]
    roles = find_roles(str(sample.path), names, options.columns, features=event_features(options))
    if isinstance(roles, str):
        return roles
    roles.pop("part", None)
    for role, position in roles.items():
        if header[position][1].endswith("_seq"):
            raise DataError(
                f"{sample.path}: the {role} column {names[position]!r} holds sequences; "
                "one interaction per line is expected"
            )
    texts = [cell.strip() for cell in first.split(separator)]
    return header_claim("a header of name:type cells", names, roles, (separator, texts, number))


RECBOLE = Reader(
    "recbole",
    "RecBole atomic files (.inter): user_id:token, item_id:token, ..., names in .item",
    _claim,
    separated.read,
)

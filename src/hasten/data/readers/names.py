"""Files of names: ``id<separator>name`` lines, or a header with an id and a name column."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hasten.data.columns import text
from hasten.data.readers import cells
from hasten.data.readers.columns import SYNONYMS, plain
from hasten.data.readers.recbole import atomic_header
from hasten.data.tables import Vocabulary
from hasten.errors import DataError

_SEPARATORS = ("::", "\t", "|", ";", ",")
_NAME = frozenset(
    ("name", "title", "itemname", "itemtitle", "movietitle", "booktitle", "artistname", "trackname")
)
_EXPECTED = "expected: id<separator>name, or a header with an id and a name column"
_WORDING = ("id", "name", "named", _EXPECTED)


def read_names(path: Path, encoding: str = "utf-8") -> dict[str, str]:
    """Read a file of names: id text -> name.

    encoding: UTF-8, except for data sets that are published in another encoding.

    Raises:
        DataError: with file, line and text; two different names for one id.
    """
    lines = text.checked_lines(path, encoding)
    separator, *columns, skip = _layout(path, lines[0][1])
    names = read_pairs(
        path, lines[skip:], separator, (columns[0], columns[1]), _WORDING, blank=True
    )
    if not names:
        raise DataError(f"{path}: 0 rows, only a header")
    return names


def read_pairs(
    path: Path,
    lines: list[tuple[int, str]],
    separator: str,
    columns: tuple[int, int],
    wording: tuple[str, str, str, str],
    blank: bool = False,
) -> dict[str, str]:
    """Two columns of a small text file as key -> value. blank: whether values may be empty.

    wording: the key, the value and the verb between an item and its value, for messages; the
    expected form.

    Raises:
        DataError: with file, line and text; two different values for one key.
    """
    key_name, value_name, verb, expected = wording
    pairs: dict[str, str] = {}
    for number, line in lines:
        try:
            row = cells.split(line, separator)
        except csv.Error as error:
            raise DataError(f"{path}: line {number}: {error}: {line!r}\n{expected}") from error
        key, value = (row[i].strip() if i < len(row) else None for i in columns)
        if not key or value is None or not (value or blank):
            raise DataError(
                f"{path}: line {number}: no {key_name} or no {value_name}: {line!r}\n{expected}"
            )
        if pairs.setdefault(key, value) != value:
            raise DataError(
                f"{path}: line {number}: item {key!r} is {verb} {value!r}, "
                f"but it was {verb} {pairs[key]!r} before"
            )
    return pairs


def _layout(path: Path, first: str) -> tuple[str, int, int, int]:
    """Separator, position of the id, position of the name, number of header lines."""
    typed = atomic_header(first, "\t")
    if typed is not None:
        names = [name for name, _ in typed]
        texts = [i for i, (_, kind) in enumerate(typed) if kind == "token_seq"]
        layout = _header(names) or (0, texts[0]) if texts else _header(names)
        if layout is None:
            raise DataError(f"{path}: no column of names among {', '.join(names)}")
        return "\t", *layout, 1
    separator = cells.fitting(first, _SEPARATORS)
    if separator is None:
        raise DataError(f"{path}: line 1 has no separator: {first!r}\n{_EXPECTED}")
    header = _header(cells.split_or_empty(first, separator))
    return (separator, *header, 1) if header else (separator, 0, 1, 0)


def _header(row: list[str]) -> tuple[int, int] | None:
    """Positions of the id and the name if the row is a header that names both."""
    ids = [i for i, cell in enumerate(row) if plain(cell) in SYNONYMS["item"] | {"id"}]
    names = [i for i, cell in enumerate(row) if plain(cell) in _NAME]
    return (ids[0], names[0]) if ids and names else None


def with_names(
    items: Vocabulary, names: dict[str, str], kind: str = "items"
) -> tuple[Vocabulary, list[str]]:
    """The vocabulary with names, and notes. kind: what it holds, for messages."""
    labels = items.labels.cast(pa.string())
    keys = pa.array(list(names), pa.string())
    if items.numeric:  # "007" and "7" are one number
        keys = pc.replace_substring_regex(keys, r"^0+([0-9])", r"\1")
        keys = pc.replace_substring_regex(keys, r"\.0*$", "")
    values = pa.array(list(names.values()), pa.string())
    texts = values.take(pc.index_in(labels, value_set=keys))
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if missing := texts.null_count:
        if missing == len(labels):
            example = labels[0].as_py()
            raise DataError(
                f"none of the {len(names)} names belongs to the {kind} of the data "
                f"(names of {next(iter(names))!r}, ..., {kind} {example!r}, ...)"
            )
        return Vocabulary(items.labels, texts), [f"{missing} of {len(labels)} {kind} have no name"]
    return Vocabulary(items.labels, texts), []

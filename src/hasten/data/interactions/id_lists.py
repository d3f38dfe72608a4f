"""Lists as KGAT publishes them (``org_id remap_id`` a line), and links of items to entities."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from hasten.arrays import Int64
from hasten.data.columns import text
from hasten.data.columns.checks import MAX_ID
from hasten.data.readers import cells
from hasten.data.readers.columns import SYNONYMS, plain
from hasten.data.readers.recbole import atomic_header
from hasten.data.tables import Vocabulary
from hasten.errors import DataError

_NUMBER = "remap_id"
_EXPECTED = "expected: a header with org_id and remap_id, then a name and its number a line"
_LINK = "expected: item<separator>entity a line, with or without a header"
_SEPARATORS = ("\t", ",", ";", "|", cells.BLANKS)
_ENTITY = frozenset(("entity", "entityid", "freebaseid"))


@dataclass(frozen=True, eq=False)
class NumberedList:
    """The names behind numbers. numbers: int64 [n] distinct, ascending; names: string [n]."""

    path: Path
    numbers: pa.Array
    names: pa.Array

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, labels: pa.Array) -> Int64:
        """Which entry each label (a number or its text) is; -1 where the list lacks it."""
        return Vocabulary(self.numbers.cast(pa.string())).index(labels.cast(pa.string()))


def read_list(path: Path) -> NumberedList:
    """A list with its header; the number stands where ``remap_id`` does, counted from the right.

    Raises:
        DataError: with file, line and text; a number that occurs twice.
    """
    lines = text.checked_lines(path)
    header = lines[0][1].split()
    if _NUMBER not in header:
        raise DataError(f"{path}: line {lines[0][0]}: no header: {lines[0][1]!r}\n{_EXPECTED}")
    from_right = len(header) - header.index(_NUMBER)
    found: dict[int, str] = {}
    for number, line in lines[1:]:
        row = line.split()
        # published lists have entries without a name
        cell = row[-from_right] if len(row) >= from_right else ""
        if not cell.isdecimal() or int(cell) > MAX_ID:
            raise DataError(f"{path}: line {number}: no number: {line!r}\n{_EXPECTED}")
        if int(cell) in found:
            raise DataError(f"{path}: line {number}: the number {int(cell)} again: {line!r}")
        found[int(cell)] = " ".join(row[:-from_right])
    ordered = sorted(found)
    names = pa.array([found[n] or None for n in ordered], pa.string())
    return NumberedList(path, pa.array(ordered, pa.int64()), names)


def read_links(path: Path) -> dict[str, str]:
    """Item text -> entity text, of two columns with any separator; a header says which is which.

    Raises:
        DataError: with file, line and text; an item with two entities.
    """
    lines = text.checked_lines(path)
    first = lines[0][1]
    separator = next((s for s in _SEPARATORS if len(cells.split_or_empty(first, s)) > 1), None)
    if separator is None:
        raise DataError(f"{path}: line {lines[0][0]}: one cell only: {first!r}\n{_LINK}")
    typed = atomic_header(first, separator)
    names = (
        [plain(n) for n, _ in typed]
        if typed
        else [plain(c) for c in cells.split_or_empty(first, separator)]
    )
    items = [i for i, name in enumerate(names) if name in SYNONYMS["item"]]
    entities = [i for i, name in enumerate(names) if name in _ENTITY]
    item, entity = (items[0], entities[0]) if items and entities else (0, 1)
    links: dict[str, str] = {}
    for number, line in lines[1 if typed or (items and entities) else 0 :]:
        row = [cell.strip() for cell in cells.split_or_empty(line, separator)]
        if len(row) <= max(item, entity) or not row[item] or not row[entity]:
            raise DataError(f"{path}: line {number}: no item or no entity: {line!r}\n{_LINK}")
        if links.setdefault(row[item], row[entity]) != row[entity]:
            raise DataError(
                f"{path}: line {number}: item {row[item]!r} is linked to {row[entity]!r}, "
                f"but it was linked to {links[row[item]]!r} before"
            )
    return links

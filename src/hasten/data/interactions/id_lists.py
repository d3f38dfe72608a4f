"""Id lists in KGAT's layout (``org_id remap_id`` per line), and links of items to entities."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from hasten.arrays import Int64
from hasten.config import InteractionOptions
from hasten.data.columns import text
from hasten.data.columns.checks import MAX_ID, counted, printable
from hasten.data.interactions.load import load_dataset
from hasten.data.interactions.side_files import KnowledgeFiles, locate_knowledge
from hasten.data.readers import cells
from hasten.data.readers.columns import SYNONYMS, plain
from hasten.data.readers.names import read_pairs
from hasten.data.readers.recbole import atomic_header
from hasten.data.sources import catalog
from hasten.data.sources.fetch import fetched_options
from hasten.data.sources.files import locate
from hasten.data.tables import Dataset, Vocabulary
from hasten.errors import DataError

_NUMBER = "remap_id"
_EXPECTED = "expected: a header with org_id and remap_id, then a name and its number a line"
_LINK = "expected: item<separator>entity a line, with or without a header"
_WORDING = ("item", "entity", "linked to", _LINK)
_SEPARATORS = ("\t", ",", ";", "|", cells.BLANKS)
_WHOLE = re.compile("-?[0-9]{1,19}")
_ENTITY = frozenset(("entity", "entityid", "freebaseid"))


@dataclass(frozen=True, eq=False)
class NumberedList:
    """An id list. numbers: int64 [n] distinct, ascending; names: string [n]."""

    path: Path
    numbers: pa.Array
    names: pa.Array

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, labels: pa.Array) -> Int64:
        """Which entry each label (a number or its text) is; -1 where the list lacks it."""
        return Vocabulary(self.numbers.cast(pa.string())).index(labels.cast(pa.string()))

    def names_of(self, labels: pa.Array) -> pa.Array:
        """The names of labels that are all in the list."""
        return self.names.take(pa.array(self.place(labels)))


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
        if not _WHOLE.fullmatch(cell) or not -MAX_ID - 1 <= int(cell) <= MAX_ID:
            raise DataError(f"{path}: line {number}: no number: {line!r}\n{_EXPECTED}")
        if int(cell) in found:
            raise DataError(f"{path}: line {number}: the number {int(cell)} again: {line!r}")
        found[int(cell)] = " ".join(row[:-from_right])
    ordered = sorted(found)
    names = pa.array([found[n] or None for n in ordered], pa.string())
    return NumberedList(path, pa.array(ordered, pa.int64()), names)


def load_with_lists(
    options: InteractionOptions,
    seed: int,
    table: object | None,
    entry: catalog.Entry | None,
    kg: str | None = None,
    links: str | None = None,
) -> tuple[Dataset, KnowledgeFiles, dict[str, NumberedList]]:
    """Interactions with the items and names of the id lists beside them, if there are any.

    entry: what options.path names, if it is registered. Also returns the files beside the
    interactions, and the lists by role.
    """
    name = None
    if isinstance(entry, catalog.RemoteFolder):
        options, name, entry = fetched_options(entry, options), entry.name, None
    files = locate_knowledge(options, None if entry else options.path, kg, links)
    options = files.reading(options)
    dataset = load_dataset(options, seed, table, needs_order=False)
    lists = {role: read_list(path) for role, path in files.lists.items()}
    dataset = add_id_lists(dataset, lists, options)
    return replace(dataset, name=name or dataset.name), files, lists


def add_id_lists(
    dataset: Dataset, lists: dict[str, NumberedList], options: InteractionOptions
) -> Dataset:
    """The dataset with the names of the id lists, and with all items of the item list.

    Raises:
        DataError: a user or an item that its list lacks.
    """
    items, users = dataset.items, dataset.users
    notes: list[str] = []
    if (listed := lists.get("item")) is not None:
        found = listed.place(items.labels)
        _refuse_beyond(found, items.labels, listed, options, 1)
        missing = np.setdiff1d(np.arange(len(listed)), found)
        if len(missing):
            more = listed.numbers.take(pa.array(missing)).cast(items.labels.type)
            items = Vocabulary(pa.concat_arrays([items.labels, more]))
            notes.append(f"{counted(len(missing), 'item')} of the list without interactions")
        places = pa.array(np.concatenate([found, missing]))
        items = Vocabulary(items.labels, listed.names.take(places))
    if (listed := lists.get("user")) is not None:
        _refuse_beyond(listed.place(users.labels), users.labels, listed, options, 0)
        users = Vocabulary(users.labels, listed.names_of(users.labels))
    files = (text.file_digest(listed.path) for listed in lists.values())
    source = dataset.source.plus(notes, files, items=len(items))
    return replace(dataset, items=items, users=users, source=source)


def _refuse_beyond(
    found: Int64, labels: pa.Array, listed: NumberedList, options: InteractionOptions, cell: int
) -> None:
    """Refuse ids that their list lacks, with the first line that holds one."""
    strangers = set(labels.take(pa.array(np.flatnonzero(found < 0))).cast(pa.string()).to_pylist())
    if not strangers:
        return
    what = ("user", "item")[cell]
    for path, _ in locate(options).parts:
        for number, line in text.lines_of(path):
            row = line.split()
            held = strangers & set(row[1:] if cell else row[:1])
            if held:
                raise DataError(
                    f"{path}: line {number}: {what} {min(held)} is not in {listed.path.name}, "
                    f"which has {len(listed):,} entries ({counted(len(strangers), what)} in all): "
                    f"{printable(line)}"
                )
    raise DataError(f"{counted(len(strangers), what)} not in {listed.path}")


def read_links(path: Path) -> dict[str, str]:
    """Item text -> entity text, of two columns with any separator; a header says which is which.

    Raises:
        DataError: with file, line and text; an item with two entities.
    """
    lines = text.checked_lines(path)
    first = lines[0][1]
    separator = cells.fitting(first, _SEPARATORS)
    if separator is None:
        raise DataError(f"{path}: line {lines[0][0]}: one cell only: {first!r}\n{_LINK}")
    typed = atomic_header(first, separator)
    header = [name for name, _ in typed] if typed else cells.split_or_empty(first, separator)
    names = [plain(name) for name in header]
    items = [i for i, name in enumerate(names) if name in SYNONYMS["item"]]
    entities = [i for i, name in enumerate(names) if name in _ENTITY]
    item, entity = (items[0], entities[0]) if items and entities else (0, 1)
    rows = lines[1 if typed or (items and entities) else 0 :]
    return read_pairs(path, rows, separator, (item, entity), _WORDING)

"""Match the rows of imported tables with the users, items, entities and relations of the data.

Three ways to say it: ``ids`` (the labels in the data are row numbers), ``order:FILE`` (one label a
line, the first line is row 0) and ``FILE`` (a label and its row a line). It is never guessed.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.tables import AnyDataset, KnowledgeGraph, Vocabulary
from hasten.errors import DataError, UsageError

#: headers of the column that holds the row, in files of a label and a row
_ROW_NAMES = ("id", "row", "index", "remap_id", "remapid")


@dataclass(frozen=True)
class Table:
    """A vocabulary that a checkpoint has a table for.

    rows: of that table; padding: how many of its first rows stand for nothing; inverses: whether
    the rows of the inverse relations may lie behind the others. labels: those that have rows, None
    for the labels of the data.
    """

    kind: str
    rows: int
    padding: int = 0
    inverses: bool = False
    labels: tuple[str, ...] | None = None

    def vocabulary(self, dataset: AnyDataset) -> Vocabulary:
        """The labels whose rows are looked for."""
        if self.labels is not None:
            return Vocabulary(pa.array(self.labels))
        holder = dataset if isinstance(dataset, KnowledgeGraph) else dataset.facts
        vocabulary = getattr(
            holder if self.kind in ("entities", "relations") else dataset, self.kind
        )
        assert isinstance(vocabulary, Vocabulary)
        return vocabulary


@dataclass(frozen=True)
class Rows:
    """The row of every label of the data, int64, by kind; notes: what was left out."""

    of: Mapping[str, Tensor]
    notes: tuple[str, ...]


def find_rows(dataset: AnyDataset, tables: Iterable[Table], given: Mapping[str, str]) -> Rows:
    """The rows of the data's users, items, entities and relations in the tables of a checkpoint.

    given: how they are found, by kind. Raises UsageError if a kind is missing or has no table,
    DataError if a label has no row.
    """
    tables = list(tables)
    kinds = [table.kind for table in tables]
    if missing := [kind for kind in kinds if kind not in given]:
        raise UsageError(
            "; ".join(
                f"--{kind} is missing: a checkpoint knows its {kind} by row number only. Give "
                f"--{kind} ids if the labels in the data are these numbers, --{kind} order:FILE "
                f"(one label a line) or --{kind} FILE (label and row a line)"
                for kind in missing
            )
        )
    if extra := [kind for kind in given if kind not in kinds]:
        raise UsageError(
            f"--{extra[0]} has no effect: the weights have tables of {' and '.join(kinds)}"
        )
    rows_of, notes = {}, []
    for table in tables:
        rows = _rows_of(table.vocabulary(dataset), table, given[table.kind])
        unused = table.rows - table.padding - len(rows)
        if unused and not (table.inverses and unused == len(rows)):
            notes.append(f"{unused:,} rows of {table.kind} do not occur in the data: left out")
        rows_of[table.kind] = torch.from_numpy(rows)
    return Rows(rows_of, tuple(notes))


def _rows_of(vocabulary: Vocabulary, table: Table, spec: str) -> Int64:
    """The row of every label, in the order of the vocabulary."""
    if spec == "ids":
        try:
            rows = np.array(vocabulary.labels.cast(pa.int64()), np.int64)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"--{table.kind} ids: the labels in the data are names such as "
                f"{vocabulary.labels[0].as_py()!r}, not row numbers: give a FILE instead"
            ) from error
    else:
        path = Path(spec.removeprefix("order:"))
        labels, numbers = _read(path, ordered=spec.startswith("order:"))
        known = dict(zip(labels, numbers, strict=True))
        if len(known) != len(labels):
            raise DataError(f"{path}: {len(labels) - len(known):,} labels occur more than once")
        data_labels = vocabulary.labels.cast(pa.string()).to_pylist()
        if absent := [label for label in data_labels if label not in known]:
            raise DataError(
                f"{path}: {len(absent):,} of the {len(data_labels):,} {table.kind} of the data "
                f"have no line, the first: {', '.join(map(repr, absent[:5]))}"
            )
        rows = np.array([known[label] for label in data_labels], np.int64)
    bad = np.flatnonzero((rows < table.padding) | (rows >= table.rows))
    if len(bad):
        label = vocabulary.labels[int(bad[0])].as_py()
        raise DataError(
            f"--{table.kind} {spec}: {len(bad):,} of the {len(rows):,} {table.kind} of the data "
            f"are outside of the rows {table.padding} to {table.rows - 1} of the weights, the "
            f"first: {label!r} in row {rows[bad[0]]}"
        )
    if len(np.unique(rows)) != len(rows):
        raise DataError(f"--{table.kind} {spec}: several labels share a row")
    return rows


def _read(path: Path, *, ordered: bool) -> tuple[list[str], list[int]]:
    """The labels of a file and their rows. Raises UsageError or DataError with the line."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    lines = text.splitlines()
    if ordered:
        return lines, list(range(len(lines)))
    cells = [_cells(line) for line in lines if line.strip()]
    place, first = 1, 0
    if cells and len(cells[0]) == 2 and not cells[0][1].isdecimal():  # a header
        names = [cell.lower() for cell in cells[0]]
        place = next((n for n, name in enumerate(names) if name in _ROW_NAMES), 1)
        first = 1
    elif len(cells) > 1 and len(cells[0]) == 1 and cells[0][0] == str(len(cells) - 1):
        first = 1  # the number of lines, as in entity2id.txt
    labels, numbers = [], []
    for number, line in enumerate(cells[first:], first + 1):
        if len(line) != 2 or not line[place].isdecimal():
            raise DataError(
                f"{path}, line {number}: {' '.join(line)!r}: expected a label and its row; of a "
                f"file with one label a line say order:{path}"
            )
        labels.append(line[1 - place])
        numbers.append(int(line[place]))
    return labels, numbers


def _cells(line: str) -> list[str]:
    """The two columns of a line: separated by a tab, or else by the last space."""
    return line.split("\t") if "\t" in line else line.rsplit(maxsplit=1)

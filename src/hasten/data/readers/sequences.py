"""One user a line, its items oldest first: ``user item item ...``; times in a parallel file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from hasten.config import InteractionOptions
from hasten.data.columns import text
from hasten.data.columns.checks import (
    MAX_TIME,
    Problem,
    Rules,
    counted,
    looks_numeric,
    refusal,
    time_problem,
)
from hasten.data.columns.raw import IdColumn, TimeColumn
from hasten.data.columns.text import Sample
from hasten.data.readers import cells
from hasten.data.readers.interface import Claim, Events
from hasten.data.readers.lines import rows_of
from hasten.errors import DataError

_MOSTLY = 0.9
_BLOCK = 16 << 20


class Sequences:
    """One user a line."""

    name = "sequences"
    summary = "one user a line: user item item ..., oldest first; times in a parallel file"

    def claim(  # noqa: PLR0911 - one return a reason
        self, sample: Sample, options: InteractionOptions, named: bool
    ) -> Claim | str:
        if not sample.lines:
            return "not text"
        if options.columns:
            return "data.columns is given, but sequences have no columns"
        separator = cells.BLANKS if options.separator is None else options.separator
        separator = cells.separator_of(separator)
        if separator in ("::", '"'):
            return f"separated by {separator!r}"
        rows = rows_of(sample.texts, separator)
        width, frequency = Counter(len(row) for row in rows).most_common(1)[0]
        if not named:
            if max(len(row) for row in rows) < 2:
                return "one cell a line"
            if not all(looks_numeric(cell) for row in rows for cell in row):
                return "cells that are not numbers (labels are possible with --format sequences)"
            if len({row[0] for row in rows}) < len(rows):
                return "the first cell of the lines repeats, so it is not one user a line"
            if width <= 4 and frequency >= _MOSTLY * len(rows):
                return f"nearly every line has {width} cells (that is lines)"
        return Claim(
            reason="lines of different lengths, each with another first cell",
            details={"separator": separator},
            layout=separator,
        )

    def read(self, sample: Sample, claim: Claim, options: InteractionOptions) -> Events:
        times = None if options.times is None else Path(options.times)
        return _Files(sample.path, times, claim.layout).events()


@dataclass(frozen=True, eq=False)
class _Rows:
    """A file of ragged lines: the first cells (dictionary array), the others, their counts."""

    first: pa.ChunkedArray
    rest: pa.ChunkedArray
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class _Files:
    path: Path
    times: Path | None
    separator: str

    @property
    def expected(self) -> str:
        form = f"user item item ..., separated by {cells.separator_name(self.separator)}"
        if self.times is None:
            return form
        return f"{form}; in {self.times.name} on the same line: user time time ..."

    def events(self) -> Events:
        scans = [text.scan(self.path)]
        rows = self._rows(self.path, encode=True)
        users = _id_column(rows.first)
        if len(np.unique(users.codes)) < len(users.codes):
            self.refuse("a user has two lines", Rules())
        time = None
        if self.times is not None:
            scans.append(text.scan(text.require_file(self.times)))
            time = self._times(rows, users)
        if any(found.last_quote >= 0 for found in scans):
            self.refuse("double quotes", Rules())
        if any(found.hexadecimal for found in scans) and next(self.problems(Rules()), None):
            self.refuse("", Rules())
        if not len(rows.rest):
            raise DataError(f"{self.path}: 0 events, no user has an item")
        notes = []
        if empty := int(np.count_nonzero(rows.counts == 0)):
            notes.append(f"{counted(empty, 'user')} without items: left out")
        files = [self.path] if self.times is None else [self.path, self.times]
        return Events(
            source=str(self.path),
            user=IdColumn(np.repeat(users.codes, rows.counts), users.values),
            item=_id_column(rows.rest),
            rating=None,
            time=time,
            part=None,
            problems=self.problems,
            expected=self.expected,
            files=tuple(found.source(path) for found, path in zip(scans, files, strict=True)),
            notes=tuple(notes),
        )

    def _times(self, rows: _Rows, users: IdColumn) -> TimeColumn:
        assert self.times is not None
        other = self._rows(self.times, encode=False)
        keys = _id_column(other.first)
        same = len(keys) == len(users) and np.array_equal(rows.counts, other.counts)
        if not same or not _texts(users).equals(_texts(keys)):
            self.refuse("the lines of the two files differ", Rules())
        for kind in (pa.int64(), pa.float64()):
            try:
                values = other.rest.cast(kind).to_numpy()
            except pa.ArrowInvalid:
                continue
            if np.all(np.abs(values) <= MAX_TIME):
                return TimeColumn(values)
        self.refuse("a time that is not a number", Rules())
        raise AssertionError("unreachable")

    def _rows(self, path: Path, encode: bool) -> _Rows:
        """All lines, block by block; encode: the other cells as a dictionary array too."""
        first, rest, counts = [], [], []
        for lines in _line_blocks(path):
            trimmed = pc.ascii_trim(
                lines, " \t" if self.separator == cells.BLANKS else self.separator
            )
            trimmed = trimmed.filter(pc.not_equal(trimmed, ""))
            pattern = "[ \t]+" if self.separator == cells.BLANKS else re.escape(self.separator)
            lists = pc.split_pattern_regex(trimmed, pattern)
            sizes = np.asarray(pc.list_value_length(lists), np.int64)
            offsets = np.zeros(len(sizes) + 1, np.int64)
            np.cumsum(sizes, out=offsets[1:])
            flat = lists.flatten()
            follows = np.ones(len(flat), bool)
            follows[offsets[:-1]] = False
            first.append(flat.take(pa.array(offsets[:-1])).dictionary_encode())
            cells_after = flat.filter(pa.array(follows))
            rest.append(cells_after.dictionary_encode() if encode else cells_after)
            counts.append(sizes - 1)
        if not counts:
            raise DataError(f"{path}: 0 rows, the file is empty")
        return _Rows(pa.chunked_array(first), pa.chunked_array(rest), np.concatenate(counts))

    def problems(self, rules: Rules) -> Iterator[Problem]:
        """Every line that breaks the rules, of the items or of the times."""
        seen: dict[str, int] = {}
        others = iter(()) if self.times is None else self._split(self.times)
        for mine, other in zip_longest(self._split(self.path), others):
            if mine is None:
                assert self.times is not None
                yield Problem(f"line {other[0]}", other[1], f"only {self.times.name} has this line")
                continue
            number, line, row = mine
            where = f"line {number}"
            reason = rules.id_problem("user", row[0], rules.user)
            if reason is None and row[0] in seen:
                reason = f"user {row[0]!r} has a line already (line {seen[row[0]]})"
            seen.setdefault(row[0], number)
            if reason is None and '"' in line:
                reason = "a double quote; cells are not quoted in this format"
            for cell in row[1:]:
                reason = reason or rules.id_problem("item", cell, rules.item)
            if reason is None and self.times is not None:
                reason = self._time_reason(row, other)
                if reason is not None and other is not None:
                    line = other[1]
            if reason is not None:
                yield Problem(where, line, reason)

    def _time_reason(self, row: list[str], other: tuple[int, str, list[str]] | None) -> str | None:
        """Why the line of times does not go with the line of items."""
        assert self.times is not None
        name = self.times.name
        if other is None:
            return f"{name} has no such line"
        number, _, times = other
        if times[0] != row[0]:
            return f"{name} line {number} is of user {times[0]!r}, not {row[0]!r}"
        if len(times) != len(row):
            return f"{len(row) - 1} items, but {len(times) - 1} times in {name} line {number}"
        for cell in times[1:]:
            if reason := time_problem(cell, "number"):
                return f"{name} line {number}: {reason}"
        return None

    def _split(self, path: Path) -> Iterator[tuple[int, str, list[str]]]:
        for number, line in text.lines_of(path):
            trimmed = line.strip(" \t" if self.separator == cells.BLANKS else self.separator)
            if trimmed:
                blanks = self.separator == cells.BLANKS
                row = re.split("[ \t]+", trimmed) if blanks else trimmed.split(self.separator)
                yield number, line, row

    def refuse(self, cause: str, rules: Rules) -> None:
        name = str(self.path) if self.times is None else f"{self.path} with {self.times.name}"
        raise refusal(name, self.problems(rules), self.expected, "", cause)


def _line_blocks(path: Path) -> Iterator[pa.Array]:
    """The lines of a text file as string arrays (0x01 cannot occur: control characters are out)."""
    with text.open_bytes(path) as file:
        try:
            reader = arrow_csv.open_csv(
                file,
                arrow_csv.ReadOptions(column_names=["line"], block_size=_BLOCK),
                arrow_csv.ParseOptions(delimiter="\x01", quote_char=False),
                arrow_csv.ConvertOptions(
                    column_types={"line": pa.string()}, null_values=[], strings_can_be_null=False
                ),
            )
            for batch in reader:
                yield batch.column(0)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: {error}") from error


def _id_column(column: pa.ChunkedArray) -> IdColumn:
    unified = column.unify_dictionaries()
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in unified.chunks])
    return IdColumn(codes.astype(np.int32, copy=False), unified.chunk(0).dictionary)


def _texts(column: IdColumn) -> pa.Array:
    return column.values.take(pa.array(column.codes))

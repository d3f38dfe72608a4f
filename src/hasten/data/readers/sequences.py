"""One user per line, items in order of time: ``user item item ...``; times in a second file."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.config import InteractionOptions
from hasten.data.columns import text
from hasten.data.columns.checks import (
    MAX_TIME,
    Row,
    Rows,
    Rules,
    counted,
    looks_numeric,
    time_problem,
)
from hasten.data.columns.ids import IdColumn
from hasten.data.columns.text import Sample
from hasten.data.columns.times import TimeColumn
from hasten.data.readers import cells
from hasten.data.readers.interface import Claim, Columns, Reader
from hasten.errors import DataError

_MIN_SAME_WIDTH_SHARE = 0.9
_BLOCK = 8 << 20


def _claim(  # noqa: PLR0911 - one return a reason
    sample: Sample, options: InteractionOptions, named: bool
) -> Claim | str:
    if options.columns:
        return "data.columns is given, but sequences have no columns"
    separator = cells.separators(options.separator, (cells.BLANKS,))[0]
    if separator in ("::", '"'):
        return f"separated by {separator!r}"
    rows = cells.rows_of(sample.texts, separator)
    width, frequency = Counter(len(row) for row in rows).most_common(1)[0]
    if not named:
        if max(len(row) for row in rows) < 2:
            return "one cell a line"
        if not all(looks_numeric(cell) for row in rows for cell in row):
            return "cells that are not numbers (labels are possible with --format sequences)"
        if len({row[0] for row in rows}) < len(rows):
            return "the first cell of the lines repeats, so it is not one user a line"
        if width <= 4 and frequency >= _MIN_SAME_WIDTH_SHARE * len(rows):
            return f"nearly every line has {width} cells (that is lines)"
    return Claim(
        reason="lines of different lengths, each with another first cell",
        details={"separator": separator},
        layout=_Files(
            sample.path, None if options.times is None else Path(options.times), separator
        ),
    )


@dataclass(frozen=True)
class _Files:
    """A file of sequences, and the file of their times, line by line."""

    path: Path
    times: Path | None
    separator: str

    @property
    def rows(self) -> Rows:
        """The lines, to report those that cannot be used."""
        expected = f"user item item ..., separated by {cells.separator_name(self.separator)}"
        if self.times is None:
            return Rows(str(self.path), expected, Rules(), self._rows)
        expected += f"; in {self.times.name} on the same line: user time time ..."
        return Rows(f"{self.path} with {self.times.name}", expected, Rules(), self._rows)

    @property
    def margin(self) -> str:
        """The characters that a line is trimmed of."""
        return " \t" if self.separator == cells.BLANKS else self.separator

    def _rows(self) -> Iterator[Row]:
        """Every line, of the items or of the times."""
        seen: dict[str, int] = {}
        others = iter(()) if self.times is None else self._lines(self.times)
        for numbered_line, other in zip_longest(self._lines(self.path), others):
            if numbered_line is None:
                assert self.times is not None
                yield f"line {other[0]}", other[1], f"only {self.times.name} has this line"
                continue
            number, line, row = numbered_line
            reason = None
            if seen.setdefault(row[0], number) != number:
                reason = f"user {row[0]!r} has a line already (line {seen[row[0]]})"
            elif '"' in line:
                reason = "a double quote; cells are not quoted in this format"
            elif self.times is not None:
                reason = self._time_problem(self.times.name, row, other)
                line = line if reason is None or other is None else other[1]
            yield (
                f"line {number}",
                line,
                reason or [("user", row[0]), *(("item", cell) for cell in row[1:])],
            )

    @staticmethod
    def _time_problem(
        name: str, row: list[str], other: tuple[int, str, list[str]] | None
    ) -> str | None:
        """Why the line of times does not match the line of items."""
        if other is None:
            return f"{name} has no such line"
        number, _, times = other
        if times[0] != row[0]:
            return f"{name} line {number} is of user {times[0]!r}, not {row[0]!r}"
        if len(times) != len(row):
            return f"{len(row) - 1} items, but {len(times) - 1} times in {name} line {number}"
        reasons = (time_problem(cell, "number") for cell in times[1:])
        reason = next((problem for problem in reasons if problem), None)
        return None if reason is None else f"{name} line {number}: {reason}"

    def _lines(self, path: Path) -> Iterator[tuple[int, str, list[str]]]:
        for number, line in text.lines_of(path):
            if trimmed := line.strip(self.margin):
                plain = self.separator != cells.BLANKS
                row = trimmed.split(self.separator) if plain else cells.split(line, self.separator)
                yield number, line, row


#: lines of different lengths: their first cells, the others, and how many others each has
_Ragged = tuple[pa.ChunkedArray, pa.ChunkedArray, NDArray[np.int64]]


def _read(_: Sample, claim: Claim) -> Columns:
    files: _Files = claim.layout
    scans = [text.scan(files.path)]
    first, items, counts = _ragged(files, files.path, encode=True)
    users = IdColumn.of(first)
    if len(np.unique(users.codes)) < len(users.codes):
        raise files.rows.refused("a user has two lines")
    time = None
    if files.times is not None:
        scans.append(text.scan(text.require_file(files.times)))
        time = _times(files, files.times, counts, users)
    if any(scan.last_quote >= 0 for scan in scans):
        raise files.rows.refused("double quotes")
    if any(scan.hexadecimal for scan in scans) and next(files.rows.problems(Rules()), None):
        raise files.rows.refused("")
    if not len(items):
        raise DataError(f"{files.path}: 0 interactions, no user has an item")
    empty = int(np.count_nonzero(counts == 0))
    return Columns(
        rows=files.rows,
        ids={
            "user": IdColumn(np.repeat(users.codes, counts), users.values),
            "item": IdColumn.of(items),
        },
        time=time,
        files=tuple(scan.source for scan in scans),
        notes=(f"{counted(empty, 'user')} without items: left out",) if empty else (),
    )


def _times(files: _Files, path: Path, counts: NDArray[np.int64], users: IdColumn) -> TimeColumn:
    first, times, lengths = _ragged(files, path, encode=False)
    keys = IdColumn.of(first)
    same = len(keys) == len(users) and np.array_equal(counts, lengths)
    in_items_file, in_times_file = (
        column.values.take(pa.array(column.codes)) for column in (users, keys)
    )
    if not same or not in_items_file.equals(in_times_file):
        raise files.rows.refused("the lines of the two files differ")
    for kind in (pa.int64(), pa.float64()):
        try:
            values = times.cast(kind).to_numpy()
        except pa.ArrowInvalid:
            continue
        if np.all(np.abs(values) <= MAX_TIME):
            return TimeColumn(values)
    raise files.rows.refused("a time that is not a number")


def _ragged(files: _Files, path: Path, encode: bool) -> _Ragged:
    """All lines, block by block; encode: dictionary-encode the other cells too."""
    pattern = "[ \t]+" if files.separator == cells.BLANKS else re.escape(files.separator)
    first, following, counts = [], [], []
    for lines in _line_blocks(path):
        trimmed = pc.ascii_trim(lines, files.margin + "\r")
        rows = pc.split_pattern_regex(trimmed.filter(pc.not_equal(trimmed, "")), pattern)
        first.append(pc.list_element(rows, 0).dictionary_encode())
        others = pc.list_slice(rows, 1).flatten()
        following.append(others.dictionary_encode() if encode else others)
        counts.append(np.asarray(pc.list_value_length(rows), np.int64) - 1)
    if not counts:
        raise DataError(f"{path}: 0 rows, the file is empty")
    return pa.chunked_array(first), pa.chunked_array(following), np.concatenate(counts)


def _line_blocks(path: Path) -> Iterator[pa.Array]:
    """The lines of a text file as string arrays."""
    with text.open_bytes(path) as file:
        mark = codecs.BOM_UTF8
        while block := file.read(_BLOCK) + file.readline():
            lines = pa.array([block.removeprefix(mark)], pa.string())
            yield pc.split_pattern(lines, "\n").flatten()
            mark = b""


SEQUENCES = Reader(
    "sequences",
    "one user a line: user item item ..., oldest first; times in a parallel file",
    _claim,
    _read,
)

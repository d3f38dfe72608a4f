"""Separated text of a known layout -> columns, in bulk; shared by the formats made of cells."""

from __future__ import annotations

import csv as python_csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import text
from hasten.data.columns.checks import (
    ID_ROLES,
    MAX_RATING,
    MAX_TIME,
    Problem,
    Rules,
    part_of,
    refusal,
    time_rule,
)
from hasten.data.columns.raw import IdColumn, TimeColumn
from hasten.data.readers.cells import BLANKS, Layout, split
from hasten.data.readers.interface import Events
from hasten.errors import DataError

_BLOCK = 16 << 20


def read(path: Path, layout: Layout, lines: list[str]) -> Events:
    """All events of the file.

    lines: its first non-blank lines after the header, to see what kind of times they hold.

    Raises:
        DataError: with file, line and text.
    """
    reader, table, file = open_table(path, layout, lines)
    return Events(
        source=str(path),
        user=reader.ids(table, "user"),
        item=reader.ids(table, "item"),
        rating=reader.ratings(table),
        time=reader.times(table),
        part=reader.parts(table),
        problems=reader.problems,
        expected=layout.expected(),
        header=reader.header,
        files=(file,),
    )


def open_table(
    path: Path, layout: Layout, lines: list[str]
) -> tuple[FileReader, pa.Table, dict[str, Any]]:
    """The needed columns of a checked file, its reader, and what to record of it.

    Raises:
        DataError: with file, line and text.
    """
    found = text.scan(path)
    header_rows = 1 if layout.header_line else 0
    if not lines:
        raise DataError(f"{path}: 0 rows, only a header ({', '.join(layout.header)})")
    reader = FileReader(path, layout, _time_kind(layout, lines))
    if layout.quoted and not reader.quotes_pair_up(found.last_quote + 1):
        reader.refuse("a double quote that does not enclose a whole cell")
    if found.last_quote >= 0 and not layout.quoted:
        reader.refuse("a double quote in a file whose cells are not quoted")
    table = reader.table()
    if found.lines - header_rows != table.num_rows:
        blank = sum(1 for _, line in text.lines_of(path) if reader.skips(line))
        if found.lines - header_rows - blank != table.num_rows:
            reader.refuse("the number of rows differs from the number of lines")
    if found.hexadecimal:
        reader.verify()
    return reader, table, found.source(path)


def _time_kind(layout: Layout, lines: list[str]) -> str:
    """int, float, date or zoned: what the first times look like."""
    if "time" not in layout.columns:
        return "int"
    position = layout.columns["time"]
    cells = []
    for line in lines:
        try:
            row = split(line, layout.separator)
        except python_csv.Error:
            continue
        if len(row) == layout.width:
            cells.append(row[position])
    kinds = {time_rule(cell) for cell in cells}
    for kind in ("zoned", "date"):
        if kind in kinds:
            return kind
    return "int" if all(c.strip().lstrip("-").isdecimal() for c in cells) else "float"


@dataclass(frozen=True)
class FileReader:
    """The bulk path over one file, and the way through it row by row."""

    path: Path
    layout: Layout
    kind: str

    @property
    def header(self) -> frozenset[str]:
        if not self.layout.header:
            return frozenset()
        positions = [p for role, p in self.layout.columns.items() if role in ID_ROLES]
        return frozenset(self.layout.header[position] for position in positions)

    @property
    def rules(self) -> Rules:
        time = "number" if self.kind in ("int", "float") else self.kind
        return Rules(time=time, header=self.header)  # type: ignore[arg-type]

    def skips(self, line: str) -> bool:
        """Whether a line counts as blank."""
        return not (line.strip(" \t") if self.layout.separator == BLANKS else line)

    def problems(self, rules: Rules) -> Iterator[Problem]:
        """Every line that breaks the rules."""
        layout = self.layout
        for number, line in text.lines_of(self.path):
            if self.skips(line) or number <= layout.header_line:
                continue
            where = f"line {number}"
            if layout.quoted and '"' in line and not self._pairs_up(line.encode()):
                yield Problem(where, line, "a double quote that does not enclose a whole cell")
                continue
            try:
                cells = split(line, layout.separator)
            except python_csv.Error as error:
                yield Problem(where, line, str(error))
                continue
            if len(cells) != layout.width:
                plural = "" if len(cells) == 1 else "s"
                yield Problem(where, line, f"{len(cells)} column{plural} instead of {layout.width}")
                continue
            named = {role: cells[i] for role, i in layout.columns.items()}
            if not layout.quoted and any('"' in cell for cell in named.values()):
                yield Problem(where, line, "a double quote; cells are not quoted in this format")
            elif reason := rules.problem(named):
                yield Problem(where, line, reason)

    def lines_of_rows(self, rows: Int64) -> Iterator[tuple[str, str]]:
        """("line 7", its text) of the given rows (ascending, from 0)."""
        wanted, row = set(rows.tolist()), -1
        for number, line in text.lines_of(self.path):
            if self.skips(line) or number <= self.layout.header_line:
                continue
            row += 1
            if row in wanted:
                yield f"line {number}", line

    def refuse(self, cause: str) -> None:
        """Raise the error that names the lines."""
        raise refusal(
            str(self.path),
            self.problems(self.rules),
            self.layout.expected(),
            "",
            cause,
        )

    def verify(self) -> None:
        """Go through every line, where the bulk reader is known to be more lenient."""
        if next(self.problems(self.rules), None) is not None:
            self.refuse("")

    def _pairs_up(self, lines: bytes) -> bool:
        """Whether every double quote in whole lines encloses a cell of one line."""
        if b'"' not in lines:
            return True
        mark = re.escape(self.layout.separator.encode())
        pattern = rb'(?:(?<=[\n%b])|\A)"(?:[^"\n]|"")*"(?=[\r\n%b]|\Z)' % (mark, mark)
        return b'"' not in re.sub(pattern, b"", lines)

    def quotes_pair_up(self, stop: int) -> bool:
        """Whether every double quote before the offset ``stop`` encloses a cell of one line."""
        if not stop:
            return True
        with text.open_bytes(self.path) as file:
            first = file.read(3)
            rest = b"" if first == b"\xef\xbb\xbf" else first
            done = 3
            while done < stop and (block := file.read(1 << 20)):
                done += len(block)
                block = rest + block
                cut = block.rfind(b"\n") + 1
                if not self._pairs_up(block[:cut]):
                    return False
                rest = block[cut:]
            rest += file.readline()
        return self._pairs_up(rest)

    def table(self) -> pa.Table:
        """The needed columns, ids dictionary-encoded; falls back once where it may."""
        try:
            return self._arrow(self.kind, normalise=False)
        except pa.ArrowInvalid as error:
            cause = str(error)
        for kind, normalise in (("float", False), (self.kind, True), ("float", True)):
            if kind == "float" and self.kind != "int":
                continue
            if normalise and self.layout.separator != BLANKS:
                continue
            try:
                return self._arrow(kind, normalise)
            except pa.ArrowInvalid:
                continue
        self.refuse(cause)
        raise AssertionError("unreachable")

    def _arrow(self, kind: str, normalise: bool) -> pa.Table:
        double = self.layout.separator == "::"
        step = 2 if double else 1
        width = self.layout.width * step - (step - 1)
        names = [f"c{i}" for i in range(width)]
        types: dict[str, pa.DataType] = {}
        for role, position in self.layout.columns.items():
            types[names[position * step]] = _column_type(role, kind)
        if double:  # "a::b" is read as a, an empty column, b
            types |= {names[i]: pa.null() for i in range(1, width, 2)}
        with text.open_bytes(self.path) as file:
            plain = self.path if not normalise and not text.is_gzip(self.path) else None
            return arrow_csv.read_csv(
                io.BufferedReader(_SingleBlanks(file)) if normalise else plain or file,
                arrow_csv.ReadOptions(
                    column_names=names, skip_rows=self.layout.header_line, block_size=_BLOCK
                ),
                arrow_csv.ParseOptions(
                    delimiter=self.layout.separator[0],
                    quote_char='"' if self.layout.quoted else False,
                    newlines_in_values=False,
                ),
                arrow_csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types),
                    null_values=[""] if double else [],
                    strings_can_be_null=False,
                ),
            )

    def _column(self, table: pa.Table, role: str) -> pa.ChunkedArray:
        step = 2 if self.layout.separator == "::" else 1
        return table.column(f"c{self.layout.columns[role] * step}")

    def ids(self, table: pa.Table, role: str) -> IdColumn:
        column = self._column(table, role).unify_dictionaries()
        codes = [np.asarray(chunk.indices) for chunk in column.chunks]
        return IdColumn(np.concatenate(codes), column.chunk(0).dictionary)

    def ratings(self, table: pa.Table) -> NDArray[np.float32] | None:
        if "rating" not in self.layout.columns:
            return None
        column = self._column(table, "rating")
        values = column.to_numpy()
        if column.null_count or not np.all(np.abs(values) <= MAX_RATING):
            self.refuse("a rating that is not finite")
        return np.asarray(values, np.float32)

    def times(self, table: pa.Table) -> TimeColumn | None:
        if "time" not in self.layout.columns:
            return None
        column = self._column(table, "time")
        if column.null_count:
            self.refuse("an empty time")
        if self.kind in ("date", "zoned"):
            zone = "UTC" if self.kind == "zoned" else None
            try:
                dates = column.cast(pa.timestamp("us", zone))
            except pa.ArrowInvalid as error:
                self.refuse(str(error))
            return TimeColumn(np.asarray(dates.cast(pa.int64()).to_numpy()), "us")
        values = column.to_numpy()
        if not np.all(np.abs(values) <= MAX_TIME):
            self.refuse("a time out of range")
        return TimeColumn(values)

    def parts(self, table: pa.Table) -> NDArray[np.int8] | None:
        if "part" not in self.layout.columns:
            return None
        column = self.ids(table, "part")
        known = [part_of(value) for value in column.values.to_pylist()]
        if None in known:
            self.refuse("a part that is neither train nor valid nor test")
        return np.array(known, np.int8)[column.codes]


def _column_type(role: str, kind: str) -> pa.DataType:
    if role == "rating":
        return pa.float32()
    if role == "time":
        return {"int": pa.int64(), "float": pa.float64()}.get(kind, pa.string())
    return pa.dictionary(pa.int32(), pa.string())


class _SingleBlanks(io.RawIOBase):
    """Runs of blanks and tabs as one blank, none at the ends of a line; line by line."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.ready:
            lines = self.file.readlines(1 << 20)
            self.ready = b"".join(b" ".join(line.split()) + b"\n" for line in lines)
        count = min(len(buffer), len(self.ready))
        buffer[:count] = self.ready[:count]
        self.ready = self.ready[count:]
        return count

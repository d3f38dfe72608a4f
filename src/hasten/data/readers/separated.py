"""Read separated text of a known layout into columns, in bulk by Arrow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.csv as arrow_csv

from hasten.data.columns import text
from hasten.data.columns.checks import first_rule, refused
from hasten.data.columns.text import Sample
from hasten.data.readers.cells import BLANKS, Layout, rows_of
from hasten.data.readers.interface import Claim, Events
from hasten.data.readers.table import Table
from hasten.data.readers.text_rows import TextRows
from hasten.errors import DataError

_BLOCK = 16 << 20
_Times = Literal["int", "float", "text"]


def read(sample: Sample, claim: Claim) -> Events:
    """All interactions of the file. Raises DataError with file, line and text."""
    return open_table(sample, claim.layout, claim.notes).events()


def open_table(sample: Sample, layout: Layout, notes: tuple[str, ...] = ()) -> Table:
    """The needed columns of a checked file.

    Raises:
        DataError: with file, line and text.
    """
    path = sample.path
    found = text.scan(path)
    lines = sample.texts[1:] if layout.header_line else sample.texts
    if not lines:
        raise DataError(f"{path}: 0 rows, only a header ({', '.join(layout.header)})")
    first = _first_times(layout, lines)
    rows = TextRows(path, layout, first_rule(first))
    rows.check_quotes(found.last_quote)
    whole = all(cell.strip().lstrip("-").isdecimal() for cell in first)
    times: _Times = "text" if rows.time != "number" else "int" if whole else "float"
    table = _read(rows, times)
    rows.check_lines(found, table.num_rows)
    columns = {role: table.column(f"c{layout.position_of(role)}") for role in layout.columns}
    return Table(rows, columns, (found.source,), notes)


def _first_times(layout: Layout, lines: list[str]) -> list[str]:
    if "time" not in layout.columns:
        return []
    rows = rows_of(lines, layout.separator)
    return [row[layout.columns["time"]] for row in rows if len(row) == layout.width]


def _read(rows: TextRows, times: _Times) -> pa.Table:
    """The columns; on failure once more with times as floats and with runs of blanks joined."""
    kinds: list[_Times] = ["int", "float"] if times == "int" else [times]
    joined = [False, True] if rows.layout.separator == BLANKS else [False]
    cause = ""
    for join_blanks in joined:
        for kind in kinds:
            try:
                return _arrow(rows.path, rows.layout, kind, join_blanks)
            except pa.ArrowInvalid as error:
                cause = cause or str(error)
    raise refused(rows, cause)


def _arrow(path: Path, layout: Layout, times: _Times, join_blanks: bool) -> pa.Table:
    double = layout.separator == "::"
    names = [f"c{i}" for i in range(2 * layout.width - 1 if double else layout.width)]
    types: dict[str, pa.DataType] = {}
    for role in layout.columns:
        types[names[layout.position_of(role)]] = _column_type(role, times)
    if double:  # "a::b" is read as a, an empty column, b
        types |= {name: pa.null() for name in names[1::2]}
    with text.open_bytes(path) as file:
        plain = path if not join_blanks and not text.is_gzip(path) else None
        return arrow_csv.read_csv(
            io.BufferedReader(_SingleBlanks(file)) if join_blanks else plain or file,
            arrow_csv.ReadOptions(
                column_names=names, skip_rows=layout.header_line, block_size=_BLOCK
            ),
            arrow_csv.ParseOptions(
                delimiter=layout.separator[0],
                quote_char='"' if layout.quoted else False,
                newlines_in_values=False,
            ),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[""] if double else [],
                strings_can_be_null=False,
            ),
        )


def _column_type(role: str, times: _Times) -> pa.DataType:
    if role == "rating":
        return pa.float32()
    if role == "time":
        return {"int": pa.int64(), "float": pa.float64()}.get(times, pa.string())
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

"""Separated text of a known layout: read in bulk by Arrow, and line by line to report errors."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from hasten.data.columns import text
from hasten.data.columns.checks import ID_ROLES, NAME_ROLES, Row, Rows, Rules, first_rule
from hasten.data.columns.text import Sample
from hasten.data.readers import in_blocks
from hasten.data.readers.cells import BLANKS, Layout, rows_of, split
from hasten.data.readers.interface import Claim, Columns
from hasten.data.readers.table import Blocks, Table
from hasten.errors import DataError

_QUOTE = "a double quote that does not enclose a whole cell"


_QUOTE_MARK, _LINE_FEED = b'"\n'
_BLOCK, _QUOTES_READ = 16 << 20, 4 << 20
_IDS, _TEXT = pa.dictionary(pa.int32(), pa.string()), pa.string()
#: 1, 10, 100, ...: the number of digits of a positive number is how many are at most as large
_POWERS = 10 ** np.arange(19, dtype=np.int64)


def read(sample: Sample, claim: Claim) -> Columns:
    """All interactions of the file. Raises DataError with file, line and text."""
    layout: Layout = claim.layout
    if layout.separator == BLANKS:  # joining runs of blanks takes longer, and most files have none
        return open_table(sample, layout, claim.notes).parsed()
    return in_blocks.read(
        layout.columns,
        lambda: open_table(sample, layout, claim.notes),
        lambda: blocks(sample, claim),
    )


def open_table(sample: Sample, layout: Layout, notes: tuple[str, ...] = ()) -> Table:
    """The needed columns of a checked file."""
    checked = _check(sample, layout)
    table = _read(sample.path, layout, checked.rows, checked.times)
    checked.require_all(table.num_rows, layout)
    columns = {role: table.column(f"c{layout.position_of(role)}") for role in layout.columns}
    return Table(checked.rows, columns, (checked.found.source,), notes)


def blocks(sample: Sample, claim: Claim) -> Blocks:
    """The file in blocks of 16 MiB. Raises DataError with file, line and text."""
    layout: Layout = claim.layout
    checked = _check(sample, layout)
    total = checked.found.lines - bool(layout.header_line)
    roles, source = frozenset(layout.columns), (checked.found.source,)
    return Blocks(checked.rows, total, roles, _tables(checked, layout), source, claim.notes)


@dataclass(frozen=True)
class _Checked:
    """A file whose bytes have been checked. times: the types that its times may have."""

    path: Path
    rows: Rows
    found: text.TextScan
    times: list[pa.DataType]

    def require_all(self, count: int, layout: Layout) -> None:
        """Raise DataError unless so many rows are all rows."""
        missing = self.found.lines - bool(layout.header_line) - count
        lines = text.lines_of(self.path)
        if missing and missing != sum(_is_blank(line, layout) for _, line in lines):
            raise self.rows.refused("the number of rows differs from the number of lines")
        rules = self.rows.rules
        if self.found.hexadecimal and next(self.rows.problems(rules), None) is not None:
            raise self.rows.refused("")  # Arrow reads 0x10


def _check(sample: Sample, layout: Layout) -> _Checked:
    path = sample.path
    scan = text.scan(path)
    lines = sample.texts[1:] if layout.header_line else sample.texts
    if not lines:
        raise DataError(f"{path}: 0 rows, only a header ({', '.join(layout.header)})")
    cells = rows_of(lines, layout.separator) if "time" in layout.columns else []
    first = [row[layout.columns["time"]] for row in cells if len(row) == layout.width]
    ids = {role: i for role, i in layout.columns.items() if role in ID_ROLES and layout.header}
    header = {role: frozenset({layout.header[i]}) for role, i in ids.items()}
    rules = Rules(time=first_rule(first), header=header)
    rows = Rows(str(path), layout.expected(), rules, partial(_rows, path, layout))
    if layout.quoted and not quotes_pair_up(path, layout.separator, scan.last_quote + 1):
        raise rows.refused(_QUOTE)
    if scan.last_quote >= 0 and not layout.quoted:
        raise rows.refused("a double quote in a file whose cells are not quoted")
    whole = all(cell.strip().lstrip("-").isdecimal() for cell in first)
    numbers = [pa.int64(), pa.float64()] if whole else [pa.float64()]
    return _Checked(path, rows, scan, numbers if rules.time == "number" else [pa.string()])


def _tables(checked: _Checked, layout: Layout) -> Iterator[Table]:
    """The blocks of a checked file."""
    count, cause, done = 0, "", 0
    for time in checked.times:
        try:
            with _opened(checked.path, layout, time, layout.separator == BLANKS, _TEXT) as opened:
                for number, batch in enumerate(arrow_csv.open_csv(*opened)):
                    if number < done:  # read already, before a block with another type of times
                        continue
                    done, count = number + 1, count + batch.num_rows
                    yield _block(checked.rows, pa.Table.from_batches([batch]), layout)
            checked.require_all(count, layout)
            return
        except pa.ArrowInvalid as error:
            cause = cause or str(error)
    raise checked.rows.refused(cause)


def _block(rows: Rows, batch: pa.Table, layout: Layout) -> Table:
    columns = {role: batch.column(f"c{layout.position_of(role)}") for role in layout.columns}
    for role in (role for role in ID_ROLES if role in columns):
        columns[role] = as_numbers(columns[role])
    return Table(rows, columns)


def as_numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """The texts as int64 if each is the decimal form of an integer, else as they are.

    A text that Arrow reads as an integer is at least as long as its decimal form; so all texts are
    decimal forms if they are as long together.
    """
    try:
        texts[:1].cast(pa.int64())  # a failed cast takes 30 times as long as one of all rows
        numbers = texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return texts
    values = numbers.to_numpy()
    if values.min(initial=0) == np.iinfo(np.int64).min:
        return texts
    if signs := np.count_nonzero(values < 0):
        values = np.abs(values)
    powers = _POWERS[1 : np.searchsorted(_POWERS, values.max(initial=0), "right")]
    digits = len(values) + sum(np.count_nonzero(values >= power) for power in powers)
    length = pc.sum(pc.binary_length(texts)).as_py() or 0
    return numbers if digits + signs == length else texts


def _rows(path: Path, layout: Layout) -> Iterator[Row]:
    """Every line after the header that is not blank."""
    for number, line in text.lines_of(path):
        if number > layout.header_line and not _is_blank(line, layout):
            yield f"line {number}", line, _cells(line, layout)


def _is_blank(line: str, layout: Layout) -> bool:
    return not (line.strip(" \t") if layout.separator == BLANKS else line)


def _cells(line: str, layout: Layout) -> list[tuple[str, str]] | str:
    """Role and text of the cells of a line, or why it cannot be divided."""
    if layout.quoted and not _pairs_up(line.encode(), layout.separator):
        return _QUOTE
    try:
        cells = split(line, layout.separator)
    except csv.Error as error:
        return str(error)
    if len(cells) != layout.width:
        plural = "" if len(cells) == 1 else "s"
        return f"{len(cells)} column{plural} instead of {layout.width}"
    named = [(role, cells[i]) for role, i in layout.columns.items()]
    if not layout.quoted and any('"' in cell for _, cell in named):
        return "a double quote; cells are not quoted in this format"
    return named


def quotes_pair_up(path: Path, separator: str, stop: int) -> bool:
    """Whether every double quote before the offset ``stop`` encloses a cell of one line."""
    with text.open_bytes(path) as file:
        while (start := file.tell()) < stop:
            lines = file.read(_QUOTES_READ) + file.readline()
            if not _pairs_up(lines if start else lines.removeprefix(codecs.BOM_UTF8), separator):
                return False
    return True


def _pairs_up(lines: bytes, separator: str) -> bool:
    """Whether every double quote of whole lines encloses a cell, or is doubled within one.

    Every other quote opens: after a separator or the beginning of a line, or after the quote that
    it doubles. The quote after it closes, with the reverse of these behind it and in the same line.
    """
    if b'"' not in lines:
        return True
    text = np.frombuffer(b"\n%b\n" % lines, np.uint8)
    marks = np.flatnonzero((text == _QUOTE_MARK) | (text == _LINE_FEED))
    is_quote = text[marks] == _QUOTE_MARK
    if np.any(np.cumsum(is_quote)[~is_quote] % 2):
        return False
    quotes = marks[is_quote]
    before, after = np.zeros((2, 256), bool)
    mark = separator.encode()
    before[[_QUOTE_MARK, _LINE_FEED, mark[-1]]] = True
    after[[_QUOTE_MARK, _LINE_FEED, ord("\r"), mark[0]]] = True
    return bool(before[text[quotes[::2] - 1]].all() and after[text[quotes[1::2] + 1]].all())


def _read(path: Path, layout: Layout, rows: Rows, times: list[pa.DataType]) -> pa.Table:
    """The columns; on failure with the next type of times, and with runs of blanks joined."""
    cause = ""
    for join_blanks in (False, True) if layout.separator == BLANKS else (False,):
        for time in times:
            try:
                with _opened(path, layout, time, join_blanks, _IDS) as opened:
                    return arrow_csv.read_csv(*opened)
            except pa.ArrowInvalid as error:
                cause = cause or str(error)
    raise rows.refused(cause)


@contextmanager
def _opened(
    path: Path, layout: Layout, time: pa.DataType, join_blanks: bool, ids: pa.DataType
) -> Iterator[tuple[Any, ...]]:
    """The file and the options for Arrow. ids: the type of the columns of ids and of parts."""
    double = layout.separator == "::"
    names = [f"c{i}" for i in range(2 * layout.width - 1 if double else layout.width)]
    # names are nearly as many as the nodes: encoding them takes longer than reading them
    kinds = {"rating": pa.float32(), "time": time, **dict.fromkeys(NAME_ROLES, pa.string())}
    # a column with two roles is an event feature and something else, which comes first
    roles = {layout.position_of(r): r for r in reversed(list(layout.columns))}
    types = {names[position]: kinds.get(roles[position], ids) for position in sorted(roles)}
    if double:  # "a::b" is read as a, an empty column, b
        types |= {name: pa.null() for name in names[1::2]}
    with text.open_bytes(path) as file:
        plain = path if not join_blanks and not text.is_gzip(path) else None
        yield (
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

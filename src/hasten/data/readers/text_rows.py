"""Separated text line by line: which lines are invalid, and the line number of each row."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hasten.arrays import Int64
from hasten.data.columns import text
from hasten.data.columns.checks import ID_ROLES, Problem, Rules, TimeRule, refused
from hasten.data.readers.cells import BLANKS, Layout, split

_QUOTE = "a double quote that does not enclose a whole cell"


@dataclass(frozen=True)
class TextRows:
    """A file of a known layout line by line. time: what kind of times its first lines hold."""

    path: Path
    layout: Layout
    time: TimeRule = "number"

    @property
    def source(self) -> str:
        return str(self.path)

    @property
    def expected(self) -> str:
        return self.layout.expected()

    @property
    def rules(self) -> Rules:
        header, columns = self.layout.header, self.layout.columns
        ids = frozenset(header[i] for role, i in columns.items() if header and role in ID_ROLES)
        return Rules(time=self.time, header=ids)

    def skips(self, line: str) -> bool:
        """Whether a line counts as blank."""
        return not (line.strip(" \t") if self.layout.separator == BLANKS else line)

    def rows(self) -> Iterator[tuple[int, str]]:
        """(number, text) of every line after the header that is not blank."""
        for number, line in text.lines_of(self.path):
            if number > self.layout.header_line and not self.skips(line):
                yield number, line

    def problems(self, rules: Rules) -> Iterator[Problem]:
        """Every line that breaks the rules."""
        for number, line in self.rows():
            if reason := self._problem(line, rules):
                yield Problem(f"line {number}", line, reason)

    def _problem(self, line: str, rules: Rules) -> str | None:
        layout = self.layout
        if layout.quoted and not self._pairs_up(line.encode()):
            return _QUOTE
        try:
            cells = split(line, layout.separator)
        except csv.Error as error:
            return str(error)
        if len(cells) != layout.width:
            plural = "" if len(cells) == 1 else "s"
            return f"{len(cells)} column{plural} instead of {layout.width}"
        named = {role: cells[i] for role, i in layout.columns.items()}
        if not layout.quoted and any('"' in cell for cell in named.values()):
            return "a double quote; cells are not quoted in this format"
        return rules.problem(named)

    def locate(self, rows: Int64) -> Iterator[tuple[str, str]]:
        """("line 7", its text) of the given rows (ascending, from 0)."""
        wanted = set(rows.tolist())
        for row, (number, line) in enumerate(self.rows()):
            if row in wanted:
                yield f"line {number}", line

    def check_lines(self, found: text.TextScan, rows: int) -> None:
        """Check that the file has as many lines as rows were read, and what bulk reading accepts.

        Raises:
            DataError: with the lines.
        """
        header_rows = 1 if self.layout.header_line else 0
        if found.lines - header_rows != rows:
            blank = sum(1 for _, line in text.lines_of(self.path) if self.skips(line))
            if found.lines - header_rows - blank != rows:
                raise refused(self, "the number of rows differs from the number of lines")
        if found.hexadecimal and next(self.problems(self.rules), None) is not None:
            raise refused(self, "")

    def check_quotes(self, last_quote: int) -> None:
        """Check that every double quote encloses a cell of one line. last_quote: its offset.

        Raises:
            DataError: with the lines.
        """
        if self.layout.quoted and not self.quotes_pair_up(last_quote + 1):
            raise refused(self, _QUOTE)
        if last_quote >= 0 and not self.layout.quoted:
            raise refused(self, "a double quote in a file whose cells are not quoted")

    def quotes_pair_up(self, stop: int) -> bool:
        """Whether every double quote before the offset ``stop`` encloses a cell of one line."""
        with text.open_bytes(self.path) as file:
            while (start := file.tell()) < stop:
                lines = file.read(1 << 20) + file.readline()
                if not self._pairs_up(lines if start else lines.removeprefix(codecs.BOM_UTF8)):
                    return False
        return True

    def _pairs_up(self, lines: bytes) -> bool:
        if b'"' not in lines:
            return True
        mark = re.escape(self.layout.separator.encode())
        pattern = rb'(?:(?<=[\n%b])|\A)"(?:[^"\n]|"")*"(?=[\r\n%b]|\Z)' % (mark, mark)
        return b'"' not in re.sub(pattern, b"", lines)

"""The cells of separated text: separators, layouts, splitting a line."""

from __future__ import annotations

import csv as python_csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hasten.errors import DataError

BLANKS = " "
_SEPARATOR_WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
_SEPARATOR_WORDS |= {"blank": " ", "blanks": " ", "space": " ", "whitespace": " "}
_SEPARATOR_NAMES = {"\t": "a tab", " ": "blanks", ",": "','"}


@dataclass(frozen=True)
class Layout:
    """The layout of a file.

    separator: one character, "::" or BLANKS (runs of blanks and tabs).
    width: cells per line; columns: role -> position; header_line: its number, 0 for none.
    """

    separator: str
    width: int
    columns: Mapping[str, int]
    header: tuple[str, ...] = ()
    header_line: int = 0

    @property
    def quoted(self) -> bool:
        """Whether cells may stand in double quotes (RFC 4180)."""
        return self.separator not in ("::", BLANKS)

    def position_of(self, role: str) -> int:
        """Position of a role's column as Arrow reads it: "::" leaves an empty one between two."""
        return self.columns[role] * (2 if self.separator == "::" else 1)

    def expected(self) -> str:
        """The form of a good line, in words."""
        if self.header:
            form = ",".join(self.header)
        else:
            roles = {position: role for role, position in self.columns.items()}
            form = ",".join(roles.get(i, "-") for i in range(self.width))
        return f"{self.width} columns, {form}, separated by {separator_name(self.separator)}"


def separator_name(separator: str) -> str:
    """A separator in words."""
    return _SEPARATOR_NAMES.get(separator, repr(separator))


def separators(option: str | None, usual: Sequence[str]) -> Sequence[str]:
    """The one that ``data.separator`` names (a character, "::" or a word such as "tab"), or all."""
    if option is None:
        return usual
    separator = _SEPARATOR_WORDS.get(option.lower(), option)
    if separator != "::" and (len(separator) != 1 or separator in '"\r\n'):
        raise DataError(
            f"data.separator={option!r}: one character, '::', 'tab' or 'blank' is expected"
        )
    return (separator,)


def split(line: str, separator: str) -> list[str]:
    """The cells of a line.

    Raises:
        csv.Error: quotes that do not pair up.
    """
    if separator == BLANKS:
        return re.split("[ \t]+", line.strip(" \t"))
    if separator == "::" or '"' not in line:
        return line.split(separator)
    return next(iter(python_csv.reader([line], delimiter=separator, strict=True)))


def split_or_empty(line: str, separator: str) -> list[str]:
    """The cells of a line; none where quotes do not pair up."""
    try:
        return split(line, separator)
    except python_csv.Error:
        return []


def fitting(line: str, separators: Iterable[str], least: int = 2) -> str | None:
    """The first separator that divides a line into so many cells, or None."""
    return next((s for s in separators if len(split_or_empty(line, s)) >= least), None)


def rows_of(lines: Iterable[str], separator: str) -> list[list[str]]:
    """The cells of those lines that can be split."""
    return [row for line in lines if (row := split_or_empty(line, separator))]


def stripped(line: str, separator: str) -> list[str]:
    """The cells without blanks around them; none where quotes do not pair up."""
    return [cell.strip() for cell in split_or_empty(line, separator)]

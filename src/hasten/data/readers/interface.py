"""The interface of file formats (:class:`Reader`) and what they return.

A new format is one file with a :class:`Reader`, listed in ``readers/__init__.py``. Files made of
cells only need ``claim``: :func:`.separated.read` reads them from the layout that the claim holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.config import InteractionOptions
from hasten.data.columns.checks import LocatedRows, Rows
from hasten.data.columns.raw import IdColumn, TimeColumn
from hasten.data.columns.text import Sample


@dataclass(frozen=True, eq=False, kw_only=True)
class FileColumns:
    """What the columns of every file come with. n rows, in file order.

    rows: the file row by row, for messages; part: int8 [n], the split that a column gives.
    files: name, sha256 and size of every file read; notes: what was assumed or left out.
    """

    rows: Rows
    part: NDArray[np.int8] | None = None
    files: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The name of the file or table in messages."""
        return self.rows.source


@dataclass(frozen=True, eq=False, kw_only=True)
class Events(FileColumns):
    """The interactions of one file: cells parsed, ids not yet checked. rating: float32 [n]."""

    user: IdColumn
    item: IdColumn
    rating: NDArray[np.float32] | None = None
    time: TimeColumn | None = None

    def __len__(self) -> int:
        return len(self.user)


@dataclass(frozen=True, eq=False, kw_only=True)
class TripleColumns(FileColumns):
    """The triples of one file: cells parsed, ids not yet checked."""

    rows: LocatedRows
    head: IdColumn
    relation: IdColumn
    tail: IdColumn

    def __len__(self) -> int:
        return len(self.head)


def parts_of_files(
    files: Sequence[tuple[Events | TripleColumns, int | None]],
) -> NDArray[np.int8] | None:
    """[n] the part of every row: that of its file or its column. None where none is given."""
    found = [
        columns.part if part is None else np.full(len(columns), part, np.int8)
        for columns, part in files
    ]
    named = [part for part in found if part is not None]
    return np.concatenate(named) if named else None


@dataclass(frozen=True)
class Claim:
    """A reader's answer that it can read a file.

    reason: why; details: what a person wants to see (separator, columns); notes: what was assumed;
    layout: what the reader needs to read the file.
    """

    reason: str
    details: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    layout: Any = None


@dataclass(frozen=True)
class Reader:
    """One file format of interactions.

    name: the value of ``--format``; summary: one line for the list of formats.
    claim: how a file would be read, or why it cannot be. Its last argument tells whether the user
    chose this format; otherwise it claims only what no other format could be.
    read: the interactions of a file. Raises DataError with file, line and text.
    """

    name: str
    summary: str
    claim: Callable[[Sample, InteractionOptions, bool], Claim | str]
    read: Callable[[Sample, Claim], Events]

"""The interface of file formats (:class:`Reader`) and what they return.

A new format is one file with a :class:`Reader`, listed in ``readers/__init__.py``. Files made of
cells only need ``claim``: :func:`.separated.read` reads them from the layout that the claim holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.config import InteractionOptions
from hasten.data.columns.checks import Rows
from hasten.data.columns.ids import IdColumn
from hasten.data.columns.text import Sample
from hasten.data.columns.times import TimeColumn
from hasten.data.readers.cells import Layout
from hasten.errors import DataError


@dataclass(frozen=True, eq=False, kw_only=True)
class Columns:
    """The interactions, triples or edges of one file: cells parsed, ids not yet checked. n rows.

    rows: the file row by row, for messages. ids: by role: user and item, or head, relation and
    tail. rating: float32 [n]; part: int8 [n], the split that a column gives. features: the texts
    of event features, by column. files: name, sha256 and size of every file read; notes: what was
    assumed or left out.
    """

    rows: Rows
    ids: Mapping[str, IdColumn]
    rating: NDArray[np.float32] | None = None
    time: TimeColumn | None = None
    part: NDArray[np.int8] | None = None
    features: Mapping[str, IdColumn] = field(default_factory=dict)
    files: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.ids.values())))

    @property
    def source(self) -> str:
        """The name of the file or table in messages."""
        return self.rows.source


@dataclass(eq=False)
class Read:
    """What was read of a data set, in order (train, valid, test).

    columns: those of each file, with its part (None: not named); format: for people. names: label
    of an item or entity -> name; files: further files to record.
    """

    name: str
    path: str | None
    format: str
    columns: list[tuple[Columns, int | None]]
    names: dict[str, str] = field(default_factory=dict)
    files: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The data, for messages."""
        return self.path or self.name

    @property
    def sources(self) -> list[Columns]:
        """The columns of every file."""
        return [columns for columns, _ in self.columns]

    def parts(self) -> NDArray[np.int8] | None:
        """[n] the part of every row: that of its file or its column. None where none is given."""
        parts = [
            columns.part if part is None else np.full(len(columns), part, np.int8)
            for columns, part in self.columns
        ]
        given_parts = [part for part in parts if part is not None]
        return np.concatenate(given_parts) if given_parts else None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Put the data in front of errors that do not name them."""
        try:
            yield
        except DataError as error:
            raise (
                error if self.where in str(error) else DataError(f"{self.where}: {error}")
            ) from error


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


def unused_note(names: Sequence[str], roles: Mapping[str, int]) -> tuple[str, ...]:
    """The note about the columns that have no role, if there are any."""
    unused = [name for i, name in enumerate(names) if i not in roles.values() and name.strip()]
    return (f"columns not used: {', '.join(unused)}",) if unused else ()


def header_claim(
    reason: str | None,
    names: Sequence[str],
    roles: dict[str, int],
    text: tuple[str, Sequence[str], int] | None = None,
    notes: tuple[str, ...] = (),
) -> Claim:
    """A claim by the names of the columns. reason: None to list the columns.

    text: of separated text, the separator, the cells of the header and the number of its line.
    """
    layout = None
    if text is not None:
        separator, cells, line = text
        layout = Layout(separator, len(cells), roles, tuple(cells), line)
    columns = {role: names[i] for role, i in roles.items()}
    details = {"columns": columns, "header": list(names)}
    return Claim(
        reason=reason or f"a header with the columns {', '.join(columns.values())}",
        details=details if layout is None else {"separator": layout.separator, **details},
        notes=(*notes, *unused_note(names, roles)),
        layout=layout,
    )


def position_claim(
    separator: str, width: int, roles: dict[str, int], notes: tuple[str, ...] = ()
) -> Claim:
    """A claim for lines without a header."""
    return Claim(
        reason=f"{width} cells a line and no header",
        details={
            "separator": separator,
            "columns": {role: str(position + 1) for role, position in roles.items()},
        },
        notes=notes,
        layout=Layout(separator, width, roles),
    )


def order_note(roles: Mapping[str, int]) -> str:
    """The note about the order that the columns are assumed to have."""
    return f"no header: columns taken as {' '.join(sorted(roles, key=lambda role: roles[role]))}"


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
    read: Callable[[Sample, Claim], Columns]

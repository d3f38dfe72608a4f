"""The seam of the readers: what a format is asked, and what it answers with.

A new format is one file: an object with ``name``, ``summary``, ``claim`` and ``read``, put into
the table in ``readers/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hasten.config import InteractionOptions
from hasten.data.columns.checks import Problem, Rules
from hasten.data.columns.raw import IdColumn, TimeColumn
from hasten.data.columns.text import Sample


@dataclass(frozen=True, eq=False)
class Events:
    """The events of one file: cells parsed, ids not yet judged. n rows, in file order.

    problems: goes through the file row by row and yields what breaks the given rules.
    expected: the form of a good row, in words; header: texts of the header's id cells.
    files: name, sha256 and size of every file read; notes: what was assumed or left out.
    """

    source: str
    user: IdColumn
    item: IdColumn
    rating: NDArray[np.float32] | None
    time: TimeColumn | None
    part: NDArray[np.int8] | None
    problems: Callable[[Rules], Iterator[Problem]]
    expected: str
    header: frozenset[str] = frozenset()
    files: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.user)


@dataclass(frozen=True)
class Claim:
    """A reader's answer that it can read a file: why, how, and what it had to assume.

    details: what a person wants to see (separator, columns); layout: the reader's own.
    """

    reason: str
    details: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    layout: Any = None


class Reader(Protocol):
    """One file format."""

    @property
    def name(self) -> str:
        """What ``--format`` calls it."""
        ...

    @property
    def summary(self) -> str:
        """One line for the list of formats."""
        ...

    def claim(self, sample: Sample, options: InteractionOptions, named: bool) -> Claim | str:
        """How it would read the file, or why it would not; named: the user chose this format."""
        ...

    def read(self, sample: Sample, claim: Claim, options: InteractionOptions) -> Events:
        """The events of the file.

        Raises:
            DataError: what cannot be used, with file, line and text.
        """
        ...

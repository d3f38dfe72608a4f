"""External sort: rows are divided into ranges of a key on disk, and a range at a time is sorted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.readers.ahead import ahead, workers

#: rows that are sorted together; a cell with more is a range of its own
BUCKET = 1 << 19
#: rows that are divided together
CHUNK = 1 << 20

Columns = Sequence[NDArray[Any]]
#: the cell of every row [n], and the columns [n] each
Divided = tuple[NDArray[Any], Columns]
T = TypeVar("T")
R = TypeVar("R")


def boundaries(counts: Int64, rows: int) -> Int64:
    """The first cells of ranges with about so many rows each, and the number of cells."""
    ends = np.cumsum(counts)
    size = max(rows, int(ends[-1]) >> 12)
    return np.append(np.flatnonzero(np.diff(ends // size, prepend=-1)), len(counts))


class Buckets:
    """Columns on disk whose rows lie together by ranges of cells, in the order they were written.

    A cell is a whole number, such as the user of an event. ``first``: int64 [ranges + 1], the first
    cell of each range. The files are sparse where fewer rows are written than announced.
    """

    def __init__(
        self, folder: Path, types: Mapping[str, Any], counts: Int64, rows: int | None = None
    ) -> None:
        """folder: for the files; types: of the columns; counts: int64 [cells] of rows, at most.

        rows: of a range; None: ``BUCKET``.
        """
        self.first = boundaries(counts, BUCKET if rows is None else rows)
        self._range_of = np.repeat(
            np.arange(len(self.first) - 1, dtype=np.uint16), np.diff(self.first)
        )
        self._begins = np.append(0, np.cumsum(counts))[self.first[:-1]]
        self._ends = self._begins.copy()
        self._folder, self._types = folder, {name: np.dtype(kind) for name, kind in types.items()}
        folder.mkdir()
        for name in types:
            (folder / name).touch()

    def __len__(self) -> int:
        return len(self._begins)

    def fill(self, chunks: Iterable[T], divide: Callable[[T], Divided]) -> None:
        """Write the rows of all chunks; ``divide`` is called in threads."""

        def grouped(chunk: T) -> tuple[Int64, list[NDArray[Any]]]:
            """How many rows of a chunk each range has, and the columns in the order of ranges."""
            cells, columns = divide(chunk)
            where = self._range_of[cells]
            order = np.argsort(where, kind="stable")  # of 16 bits: a radix sort
            types = self._types.values()
            kept = [c[order].astype(t, copy=False) for c, t in zip(columns, types, strict=True)]
            return np.bincount(where, minlength=len(self)), kept

        files = [os.open(self._folder / name, os.O_WRONLY) for name in self._types]
        try:
            for sizes, columns in ahead(grouped, chunks, workers()):
                stops = np.cumsum(sizes)
                for column, file in zip(columns, files, strict=True):
                    for number in np.flatnonzero(sizes).tolist():
                        part = column[stops[number] - sizes[number] : stops[number]]
                        os.pwrite(file, part.data, int(self._ends[number]) * column.itemsize)
                self._ends += sizes
        finally:
            for file in files:
                os.close(file)

    def load(self, number: int) -> list[NDArray[Any]]:
        """The columns of a range."""
        begin, end = int(self._begins[number]), int(self._ends[number])
        return [load(self._folder / n, kind, begin, end) for n, kind in self._types.items()]

    def map(self, function: Callable[[int, list[NDArray[Any]]], R]) -> Iterator[R]:
        """``function(number, columns)`` of every range in order, called in threads."""
        return ahead(
            lambda number: function(number, self.load(number)), range(len(self)), workers()
        )

    def remove(self) -> None:
        """Remove the files."""
        for name in self._types:
            (self._folder / name).unlink()
        self._folder.rmdir()


def load(path: Path, kind: Any, begin: int, end: int) -> NDArray[Any]:
    """The rows from begin to end of a file of one column."""
    return np.fromfile(path, kind, end - begin, offset=begin * np.dtype(kind).itemsize)


def spans(begin: int, end: int, parts: int = 1) -> Iterator[tuple[int, int]]:
    """The rows from begin to end in chunks of ``CHUNK / parts``."""
    rows = max(1, CHUNK // parts)
    for start in range(begin, end, rows):
        yield start, min(start + rows, end)

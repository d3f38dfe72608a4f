"""Features of events: columns that describe single interactions, such as device or dwell time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config.data import EventKind
from hasten.data.columns.checks import NUMBER_PATTERN
from hasten.errors import DataError

#: words that stand for a missing cell, like an empty one, in any case
MISSING = ("", "nan", "null")
#: the name of the table in a run folder
FILE = "event_features.parquet"


@dataclass(frozen=True, eq=False)
class EventEntries:
    """The entries of n events in a table of weights, one for each of C columns.

    value: int32 [n, C] rows of the table; weight: float32 [n, C] their factors.
    """

    value: NDArray[np.int32]
    weight: NDArray[np.float32]

    def take(self, rows: Int64 | NDArray[np.bool_]) -> EventEntries:
        """Those of the given events (a mask or positions)."""
        return EventEntries(self.value[rows], self.weight[rows])

    @classmethod
    def joined(cls, parts: Sequence[EventEntries]) -> EventEntries | None:
        """Those of several groups of events; None of no group."""
        if not parts:
            return None
        value = np.concatenate([part.value for part in parts])
        return cls(value, np.concatenate([part.weight for part in parts]))


@dataclass(frozen=True)
class EventColumn:
    """A column: the values of categories, or mean and standard deviation of numbers.

    values: those of training events, sorted; None for numbers. mean, deviation: over the training
    events, 0 and 1 for categories.
    """

    name: str
    values: tuple[str, ...] | None
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def kind(self) -> EventKind:
        return "numeric" if self.values is None else "categorical"

    @property
    def labels(self) -> list[str]:
        """What its rows in the table of weights stand for: missing cells or numbers, values."""
        return [self.name, *(f"{self.name}\t{value}" for value in self.values or ())]

    def cells(self, texts: pa.Array) -> tuple[NDArray[Any], int]:
        """The cells of texts that :func:`canonical` gave, and how many values are not known.

        int32 indices of values, -1 for missing and unknown ones; or float64 numbers, NaN for
        missing ones. Raises DataError for a text that is no number, if the column holds numbers.
        """
        if self.values is None:
            values = numbers(texts)
            wrong = np.isnan(values) & np.asarray(texts.is_valid())
            if wrong.any():
                text = texts[int(np.flatnonzero(wrong)[0])].as_py()
                raise DataError(f"event feature {self.name}: {text!r} is not a number")
            return values, 0
        index = pc.index_in(texts, value_set=pa.array(self.values, pa.string()), skip_nulls=True)
        cells = np.asarray(index.fill_null(-1), np.int32)
        return cells, int(np.count_nonzero(cells < 0)) - texts.null_count

    def entries(self, cells: NDArray[Any], first: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Rows of the table of weights, where the column's begin at ``first``, and their factors.

        A missing category has a row; a missing number has the factor 0, as the mean has.
        """
        if self.values is not None:
            return cells + (first + 1), np.ones(len(cells), np.float32)
        factors = np.nan_to_num((cells - self.mean) / self.deviation)
        return np.full(len(cells), first, np.int32), factors.astype(np.float32)


@dataclass(frozen=True, eq=False)
class EventFeatures:
    """The cells of n events. cells: [n] of each column, as of :meth:`EventColumn.cells`."""

    columns: tuple[EventColumn, ...]
    cells: tuple[NDArray[Any], ...]

    @property
    def labels(self) -> pa.Array:
        """What the rows of the table of weights stand for, distinct."""
        return pa.array([label for c in self.columns for label in c.labels], pa.string())

    @cached_property
    def entries(self) -> EventEntries:
        """The entries of all events in the table of weights."""
        first = np.cumsum([0, *(len(column.labels) for column in self.columns)])
        pairs = [
            column.entries(cells, int(start))
            for column, cells, start in zip(self.columns, self.cells, first[:-1], strict=True)
        ]
        value, weight = (np.stack(each, axis=1) for each in zip(*pairs, strict=True))
        return EventEntries(value.astype(np.int32, copy=False), weight)

    def take(self, rows: Int64 | NDArray[np.bool_]) -> EventFeatures:
        """Those of the given events (a mask or positions)."""
        return replace(self, cells=tuple(cells[rows] for cells in self.cells))

    def of(self, given: Mapping[str, Sequence[Any]], count: int) -> tuple[EventFeatures, int]:
        """The features of ``count`` other events with these columns, and how many are not known.

        A column that is not given is missing. Raises DataError for a text that is no number.
        """
        converted = [
            column.cells(canonical(as_texts(given.get(column.name, [None] * count))))
            for column in self.columns
        ]
        cells = tuple(cells for cells, _ in converted)
        return EventFeatures(self.columns, cells), sum(unknown for _, unknown in converted)

    def digest(self) -> str:
        """sha256 over the content."""
        digest = hashlib.sha256(json.dumps(self.about()).encode())
        for cells in self.cells:
            kind = "<f8" if cells.dtype == np.float64 else "<i4"
            digest.update(np.ascontiguousarray(cells, kind).data)
        return digest.hexdigest()

    def about(self) -> list[dict[str, Any]]:
        """The columns, for JSON."""
        return [asdict(column) for column in self.columns]

    def to_tables(self) -> dict[str, pa.Table]:
        """The table that a run folder stores, by file name."""
        names = [str(number) for number in range(len(self.cells))]
        return {FILE: pa.table(list(map(pa.array, self.cells)), names)}

    @classmethod
    def from_table(cls, about: Sequence[Mapping[str, Any]], table: pa.Table) -> EventFeatures:
        """From what :meth:`about` and :meth:`to_tables` gave."""
        columns = tuple(
            EventColumn(
                each["name"],
                None if each["values"] is None else tuple(each["values"]),
                each["mean"],
                each["deviation"],
            )
            for each in about
        )
        return cls(columns, tuple(np.array(column) for column in table.columns))


def as_texts(values: Sequence[Any]) -> pa.Array:
    """Values of Python as texts; None stays missing."""
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def canonical(texts: pa.Array) -> pa.Array:
    """Texts without blanks around them, null for missing ones; ``True`` is ``true``, ``1.0`` is 1.

    So a column has the same values in a text file, in Parquet and in a table in memory, where
    whole numbers become floating-point numbers if a cell is missing.
    """
    texts = pc.utf8_trim_whitespace(texts)
    lower = pc.utf8_lower(texts)
    texts = pc.if_else(pc.is_in(lower, value_set=pa.array(["true", "false"])), lower, texts)
    texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+)\.0*$", r"\1")
    missing = pc.is_in(lower, value_set=pa.array(MISSING))
    return pc.if_else(missing, pa.scalar(None, pa.string()), texts)


def numbers(texts: pa.Array) -> NDArray[np.float64]:
    """The texts as numbers, NaN where they are none or not finite."""
    fits = pc.match_substring_regex(texts, NUMBER_PATTERN).fill_null(False)
    plain = pc.utf8_ltrim(pc.if_else(fits, texts, pa.scalar(None, pa.string())), "+")
    values = plain.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(values), values, np.nan)

"""Read the features of events (``data.event_features``) from the columns of the files of events.

A column is categorical or numeric as the option says. Without a kind it is numeric if all of its
cells are numbers, unless these are whole and at most :data:`MAX_WHOLE_CATEGORIES` different ones;
else it is categorical. Empty cells and the words ``nan`` and ``null`` are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import InteractionOptions, SequenceOptions
from hasten.config.data import EventKind, event_column
from hasten.data.columns.checks import bad_rows, counted, printable
from hasten.data.event_features import EventColumn, EventFeatures, canonical, numbers
from hasten.data.readers.interface import Columns
from hasten.data.tables import TRAIN
from hasten.errors import DataError

#: whole numbers with at most so many different values are categories
MAX_WHOLE_CATEGORIES = 32
#: if a larger share of the cells are numbers, the others are errors
_MIN_NUMERIC_SHARE = 0.99


@dataclass(frozen=True, eq=False)
class ReadColumn:
    """A column of all files as read. values: string, null if missing; codes: [n] into them."""

    name: str
    kind: EventKind
    values: pa.Array
    codes: Int64

    def of_events(self, row: Int64, trained: NDArray[np.bool_]) -> tuple[EventColumn, str, str]:
        """The column for the events in these rows, how it was read, and what else to say.

        trained: which of the events are for training.
        """
        used = self.codes[row]
        missing = counted(int(np.asarray(self.values.is_null())[used].sum()), "missing cell")
        if self.kind == "numeric":
            known = numbers(self.values)[used[trained]]
            known = known[~np.isnan(known)]
            mean, deviation = (known.mean(), known.std()) if len(known) else (0.0, 1.0)
            column = EventColumn(self.name, None, float(mean), float(deviation) or 1.0)
            return column, f"{self.name} (numeric, {missing})", ""
        values = pc.unique(self.values.take(pa.array(np.unique(used[trained])))).drop_null()
        column = EventColumn(self.name, tuple(sorted(values.to_pylist())))
        said = f"{self.name} (categorical, {counted(len(values), 'value')}, {missing})"
        unknown = pc.invert(pc.is_in(self.values, value_set=values))
        others = int(np.asarray(pc.and_(unknown, self.values.is_valid()))[used].sum())
        note = (
            f"event feature {self.name}: {counted(others, 'event')} with a value that no training "
            "event has: read as missing"
        )
        return column, said, note if others else ""

    def cells(self, column: EventColumn, row: Int64) -> NDArray[np.int32] | NDArray[np.float64]:
        """The cells of the events in these rows."""
        cells: NDArray[np.int32] | NDArray[np.float64] = column.cells(self.values)[0]
        return cells[self.codes[row]]


def read_columns(sources: Sequence[Columns], options: InteractionOptions) -> list[ReadColumn]:
    """The columns that the options name, of all files.

    Raises:
        DataError: a file has no columns, or a cell is not a number; with file, line and text.
    """
    asked = options.event_features if isinstance(options, SequenceOptions) else ()
    return [_joined(sources, *event_column(text)) for text in asked]


def _joined(sources: Sequence[Columns], name: str, kind: EventKind | None) -> ReadColumn:
    for source in sources:
        if name not in source.features:
            raise DataError(
                f"{source.source}: data.event_features={name}, but its columns have no names: "
                "write the events as a table with a header (CSV, TSV, Parquet)"
            )
    parts = [source.features[name] for source in sources]
    firsts = np.cumsum([0, *(len(part.values) for part in parts)])
    codes = [part.codes + first for part, first in zip(parts, firsts[:-1], strict=True)]
    texts = pa.concat_arrays([part.values.cast(pa.string()) for part in parts])
    found = ReadColumn(name, kind or "categorical", canonical(texts), np.concatenate(codes))
    return ReadColumn(name, _kind_of(found, sources, kind), found.values, found.codes)


def _kind_of(column: ReadColumn, sources: Sequence[Columns], asked: EventKind | None) -> EventKind:
    """The kind of a column. Raises DataError if it is empty, or for cells that are no numbers."""
    events = np.bincount(column.codes, minlength=len(column.values))
    filled = np.asarray(column.values.is_valid()) & (events > 0)
    if asked is None and not filled.any():
        raise DataError(
            f"{sources[0].source}: column {column.name}: no cell is filled; leave it out of "
            "data.event_features"
        )
    if asked == "categorical":
        return asked
    found = numbers(column.values)
    wrong = filled & np.isnan(found)
    if not wrong.any():
        known = np.unique(found[filled])
        few = len(known) <= MAX_WHOLE_CATEGORIES and bool(np.all(known == np.floor(known)))
        return "categorical" if few and asked is None else "numeric"
    if asked is None and events[wrong].sum() >= (1 - _MIN_NUMERIC_SHARE) * events[filled].sum():
        return "categorical"
    rows = np.flatnonzero(wrong[column.codes])
    raise bad_rows(
        [(source.rows, len(source)) for source in sources],
        rows,
        lambda row: (
            f"column {column.name}: "
            f"{printable(column.values[int(column.codes[row])].as_py())} is not a finite number"
        ),
        f"leave such a cell empty, or --set data.event_features={column.name}:categorical",
    )


def event_features(
    columns: Sequence[ReadColumn], row: Int64, part: NDArray[np.int8]
) -> tuple[EventFeatures, list[str]]:
    """The features of the events in these rows of the files, and notes.

    part: of each event. Values and means are those of the training events.
    """
    found = [column.of_events(row, part == TRAIN) for column in columns]
    notes = [f"event features: {', '.join(said for _, said, _ in found)}"]
    notes += [note for _, _, note in found if note]
    kinds = tuple(column for column, _, _ in found)
    cells = [read.cells(kind, row) for read, kind in zip(columns, kinds, strict=True)]
    return EventFeatures(kinds, tuple(cells)), notes

"""Histories that are new to a run: lists of labels by user, or a table of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hasten.arrays import Int64
from hasten.config import InteractionOptions, SequenceOptions
from hasten.data.columns.checks import MAX_TIME
from hasten.data.columns.times import PER_SECOND, unite
from hasten.data.event_features import EventEntries
from hasten.data.readers.arrow import as_arrow, open_memory
from hasten.data.tables import Dataset, Histories
from hasten.errors import DataError, UsageError, did_you_mean
from hasten.inference.labels import by_user, indices_of
from hasten.scoring import RecommenderQueries

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun


@dataclass(frozen=True, eq=False)
class NewHistories:
    """n events of users, oldest first unless there are times.

    users: their names. row: int64 [n] the user of each event, ascending; items: labels [n];
    seconds: int64 [n] or None; cells: event features by column, [n] each.
    """

    users: list[str]
    row: Int64
    items: Sequence[object]
    seconds: Int64 | None
    cells: Mapping[str, Sequence[Any]]

    def queries(
        self, dataset: Dataset, ignored: dict[str, int] | None
    ) -> tuple[RecommenderQueries, int]:
        """The queries, without unknown items; how many values of features are unknown.

        Raises DataError for unknown items, unless they are counted in ``ignored``.
        """
        remedy = "leave them out of the history, or ignore them (--unknown ignore)"
        items = indices_of(dataset.items, self.items, "item", remedy, ignored)
        kept = np.flatnonzero(items >= 0)
        if not len(kept):
            raise DataError("no item of the histories is known to the run")
        features, unknown = entries_of(dataset, self.cells, len(items))
        offsets = np.zeros(len(self.users) + 1, np.int64)
        np.cumsum(np.bincount(self.row[kept], minlength=len(self.users)), out=offsets[1:])
        seconds = self.seconds
        if seconds is not None:  # sort by history, then by time; ties keep their order
            kept = kept[np.lexsort((seconds[kept], self.row[kept]))]
            seconds = seconds[kept]
        taken = None if features is None else features.take(kept)
        history = Histories(offsets, items[kept], seconds, features=taken)
        return RecommenderQueries(np.full(len(self.users), -1, np.int64), history), unknown


def entries_of(
    dataset: Dataset, cells: Mapping[str, Sequence[Any]], count: int
) -> tuple[EventEntries | None, int]:
    """The entries of the features of ``count`` events, and how many values are unknown to the run.

    cells: by column; a column that is not given is missing. Raises DataError for a column that the
    run does not have.
    """
    features, names = dataset.event_features, dataset.event_feature_names
    for name in cells:
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "it has none (data.event_features)"
            near = did_you_mean(name, names)
            raise DataError(f"the run has no event feature {name!r}{near}; {known}")
    if features is None:
        return None, 0
    found, unknown = features.of(cells, count)
    return found.entries, unknown


def new_histories(
    loaded: LoadedRun, histories: object, times: object | None, features: object | None
) -> NewHistories:
    """Histories as :func:`hasten.inference.recommend.recommend` takes them.

    Raises DataError for an empty history, UsageError for times or features of another shape, or if
    the model scores known users only.
    """
    if not loaded.model.scores_new_users:
        raise UsageError(
            f"{loaded.model.name} cannot score a history it was not trained on; ask for known users"
        )
    options: Any = loaded.config.data  # of a recommender: InteractionOptions
    table = not isinstance(histories, Mapping) and _is_table(histories)
    if table and (times is not None or features is not None):
        raise UsageError("times and features of a table of histories are columns of this table")
    if table:
        return _of_table(loaded.dataset, histories, options)
    given = by_user(histories)
    empty = [str(user) for user, items in given.items() if not len(items)]
    if empty or not given:
        who = f" of {', '.join(map(repr, empty[:5]))}" if empty else ""
        raise DataError(f"the history{who} is empty: give at least one item")
    row = np.repeat(np.arange(len(given)), [len(items) for items in given.values()])
    seconds = None
    if times is not None:
        flat = np.array(_flat(given, by_user(times), "times"), np.float64)
        if not np.all(np.abs(flat) < MAX_TIME):
            raise DataError("the times of the histories must be numbers that are unix times")
        seconds = np.floor(flat / PER_SECOND[options.time_unit]).astype(np.int64)
    if features is not None and not isinstance(features, Mapping):
        raise UsageError("features of histories: a mapping from column to cells is expected")
    cells = {name: _flat(given, by_user(each), name) for name, each in (features or {}).items()}
    items = [item for each in given.values() for item in each]
    return NewHistories([str(user) for user in given], row, items, seconds, cells)


def _flat(
    histories: Mapping[Any, Sequence[object]], given: Mapping[Any, Sequence[Any]], what: str
) -> list[Any]:
    """The concatenated values of all histories, one for each item."""
    for user, items in histories.items():
        count = len(given.get(user, ()))
        if count != len(items):
            raise UsageError(f"the history of {str(user)!r} has {len(items)} items, {count} {what}")
    return [value for user in histories for value in given[user]]


def _is_table(histories: object) -> bool:
    names = ("column_names", "columns", "__arrow_c_stream__", "__arrow_c_array__")
    return any(hasattr(type(histories), name) for name in names)


def _of_table(dataset: Any, histories: object, options: InteractionOptions) -> NewHistories:
    """The rows of a table with the columns of the events that the run was trained on."""
    arrow = as_arrow(histories, "histories")
    there = tuple(n for n in dataset.event_feature_names if n in arrow.column_names)
    columns = {role: name for role, name in options.columns.items() if name in arrow.column_names}
    how = SequenceOptions(event_features=there, columns=columns)
    opened = open_memory(arrow, how, "histories")
    used = {r: c for r, c in opened.columns.items() if r not in ("rating", "part")}
    read = replace(opened, columns=used).parsed()
    user, item = read.ids["user"], read.ids["item"]
    first: dict[int, int] = {}  # users in the order of their first row
    row = np.array([first.setdefault(code, len(first)) for code in user.codes.tolist()])
    order = np.argsort(row, kind="stable")
    seconds = None
    if read.time is not None:
        seconds = unite([read.time], options.time_unit)[0][order]
    labels, names = item.values.to_pylist(), user.texts()
    cells = {
        name: column.values.cast(pa.string()).take(pa.array(column.codes[order])).to_pylist()
        for name, column in read.features.items()
    }
    items = [labels[code] for code in item.codes[order].tolist()]
    return NewHistories([names[code] for code in first], row[order], items, seconds, cells)

"""Recommend items to the users of a run, or for new histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from hasten.arrays import Int64
from hasten.data.columns.checks import MAX_TIME
from hasten.data.columns.times import PER_SECOND
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, Histories, Vocabulary
from hasten.errors import DataError, UsageError
from hasten.evaluation.top_k import top_k
from hasten.inference.labels import as_list, by_user, indices_of
from hasten.inference.ruled_top_k import RuledTopK
from hasten.inference.rules import Rules, read_rules
from hasten.inference.table_view import TableResult
from hasten.ops.graph.csr import CSR
from hasten.scoring import RecommenderQueries

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

Until = Literal["train", "valid", "test"]
_PARTS: dict[str, tuple[int, ...]] = {
    "train": (TRAIN,),
    "valid": (TRAIN, VALID),
    "test": (TRAIN, VALID, TEST),
}
_HISTORY_WORDS = {
    "train": "the training part",
    "valid": "the training and validation parts",
    "test": "everything known (training, validation and test parts)",
}


@dataclass(frozen=True, eq=False, repr=False)
class Recommendations(TableResult):
    """n recommended items, best first for each user.

    users: labels [Q]; user, item: int64 [n] indices of users and items; rank: int32 [n] from 1;
    score: float32 [n]. histories: the history of each user [Q]; known: its description. ignored:
    with ``unknown="ignore"``, the number of unknown labels of each kind ("item", "user").
    """

    users: pa.Array
    items: Vocabulary
    user: Int64
    item: Int64
    rank: np.ndarray[Any, np.dtype[np.int32]]
    score: np.ndarray[Any, np.dtype[np.float32]]
    topk: int
    histories: Histories
    known: str
    ignored: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.item)

    @property
    def without_history(self) -> int:
        """The number of users without a history. They all get the same items."""
        return int((self.histories.lengths == 0).sum())

    @property
    def short(self) -> int:
        """The number of users with fewer than k items, because no more are left."""
        return int((np.bincount(self.user, minlength=len(self.users)) < self.topk).sum())

    def to_table(self) -> pa.Table:
        """Columns user_id, item_id, rank, score, and item_name if names are known."""
        columns: dict[str, pa.Array] = {
            "user_id": self.users.take(pa.array(self.user)),
            "item_id": self.items.take(self.item),
            "rank": pa.array(self.rank),
            "score": pa.array(self.score),
        }
        if self.items.names is not None:
            columns["item_name"] = self.items.names.take(pa.array(self.item))
        return pa.table(columns)


def recommend(
    loaded: LoadedRun,
    users: object | None = None,
    histories: object | None = None,
    topk: int = 10,
    *,
    times: object | None = None,
    exclude_seen: bool = True,
    allow: object | None = None,
    block: object | None = None,
    until: Until = "test",
    unknown: Literal["error", "ignore"] = "error",
    rules: Rules | str | Path | None = None,
) -> Recommendations:
    """Recommend the ``topk`` best items to users, or for new histories.

    users: a label or several; None: all users, unless histories are given. histories: item labels
    by user, oldest first, used instead of what the data know about that user; a list of labels is
    the history of one user, a list of lists has one history for each. times: the times of the items
    in the histories, in the same shape and in the unit ``data.time_unit``; they replace the given
    order. Models that read times assume evenly spaced items without them.
    exclude_seen: omit the items of the history. allow, block: the only items that may appear, and
    the items that may not. until: the last part of the data in the history. unknown: ``ignore``
    leaves out unknown users and items and counts them in ``ignored``; a user whose items are all
    unknown has no history. rules: business rules, or their file; items of the rules that the run
    does not know are counted in ``ignored`` too.
    Raises DataError for unknown labels, UsageError if the model or the arguments do not allow it.
    """
    if topk < 1:
        raise UsageError(f"topk {topk}: must be 1 or more")
    if users is not None and histories is not None:
        raise UsageError("give users or histories, not both")
    if times is not None and histories is None:
        raise UsageError("times belong to histories, which are not given")
    if unknown not in ("error", "ignore"):
        raise UsageError(f"unknown {unknown!r}: must be error or ignore")
    dataset = loaded.dataset
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"{loaded.config.model.name} completes a knowledge graph and recommends nothing: "
            "hasten predict RUN"
        )
    ignored: dict[str, int] | None = {} if unknown == "ignore" else None
    if histories is not None:
        given = by_user(histories)
        each = None if times is None else by_user(times)
        labels, queries = _from_histories(loaded, dataset, given, each, ignored)
        words = "the given histories alone"
        if times is None and loaded.model.reads_times:
            words += ", taken for evenly spaced in time"
    else:
        labels, queries = _from_users(dataset, users, until, ignored)
        words = _HISTORY_WORDS[until]
    allowed = _allowed(dataset.items, allow, block, ignored)
    seen = CSR.of(queries.history) if exclude_seen else None
    if rules is None:
        found = top_k(loaded.model, queries, len(dataset.items), topk, seen, allowed)
    else:
        kept = rules if isinstance(rules, Rules) else read_rules(Path(rules))
        names = [str(label) for label in labels.to_pylist()]
        ruled = RuledTopK(loaded.model, queries, names, dataset.items, kept)
        found = ruled(topk, seen, allowed)
        ignored = {**(ignored or {}), **ruled.unknown}
    user, item, place, score = found
    return Recommendations(
        labels,
        dataset.items,
        user,
        item,
        (place + 1).astype(np.int32),
        score,
        topk,
        queries.history,
        words,
        ignored or {},
    )


def queries_of(dataset: Dataset, users: Int64, until: Until) -> RecommenderQueries:
    """Queries of known users, with their history up to a part of the data."""
    return RecommenderQueries(users, dataset.histories(*_PARTS[until]).take(users))


def _from_users(
    dataset: Dataset, users: object | None, until: Until, ignored: dict[str, int] | None
) -> tuple[pa.Array, RecommenderQueries]:
    if users is None:
        index = np.arange(len(dataset.users), dtype=np.int64)
    else:
        remedy = "a user who is new can be given by a history"
        index = indices_of(dataset.users, as_list(users), "user", remedy, ignored)
        index = index[index >= 0]
    if not len(index):
        none = "none of the users is known" if ignored else "0 users are asked for"
        raise DataError(f"{none}: name at least one")
    return dataset.users.take(index), queries_of(dataset, index, until)


def _from_histories(
    loaded: LoadedRun,
    dataset: Dataset,
    histories: Mapping[Any, Sequence[object]],
    times: Mapping[Any, Sequence[Any]] | None,
    ignored: dict[str, int] | None,
) -> tuple[pa.Array, RecommenderQueries]:
    model = loaded.model
    if not model.scores_new_users:
        raise UsageError(
            f"{model.name} cannot score a history it was not trained on; ask for known users"
        )
    empty = [str(user) for user, items in histories.items() if not len(items)]
    if empty or not histories:
        who = f" of {', '.join(map(repr, empty[:5]))}" if empty else ""
        raise DataError(f"the history{who} is empty: give at least one item")
    flat = [item for items in histories.values() for item in items]
    remedy = "leave them out of the history, or ignore them (--unknown ignore)"
    items = indices_of(dataset.items, flat, "item", remedy, ignored)
    known = items >= 0
    if not known.any():
        raise DataError("no item of the histories is known to the run")
    rows = np.repeat(np.arange(len(histories)), [len(each) for each in histories.values()])[known]
    offsets = np.zeros(len(histories) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(histories)), out=offsets[1:])
    users = pa.array([str(user) for user in histories], pa.string())
    new = np.full(len(histories), -1, np.int64)
    if times is None:
        return users, RecommenderQueries(new, Histories(offsets, items[known]))
    data: Any = loaded.config.data  # of a recommender: InteractionOptions
    seconds = _seconds(histories, times, PER_SECOND[data.time_unit])[known]
    # sort by history, then by time; ties keep their order
    order = np.lexsort((seconds, rows))
    return users, RecommenderQueries(new, Histories(offsets, items[known][order], seconds[order]))


def _seconds(
    histories: Mapping[Any, Sequence[object]],
    times: Mapping[Any, Sequence[Any]],
    per_second: int,
) -> Int64:
    """The concatenated times of all histories in whole seconds."""
    for user, items in histories.items():
        count = len(times.get(user, ()))
        if count != len(items):
            raise UsageError(f"the history of {str(user)!r} has {len(items)} items, {count} times")
    flat = np.array([time for user in histories for time in times[user]], np.float64)
    if not np.all(np.abs(flat) < MAX_TIME):
        raise DataError("the times of the histories must be numbers that are unix times")
    return np.floor(flat / per_second).astype(np.int64)


def _allowed(
    items: Vocabulary, allow: object | None, block: object | None, ignored: dict[str, int] | None
) -> Int64 | None:
    """Ascending indices of the items that may appear; None: all items."""
    if allow is None and block is None:
        return None
    allowed = np.arange(len(items), dtype=np.int64)
    remedy = "take them off the list"
    if allow is not None:
        listed = indices_of(items, as_list(allow), "allowed item", remedy, ignored)
        allowed = np.unique(listed[listed >= 0])
    if block is not None:
        blocked = indices_of(items, as_list(block), "blocked item", remedy, ignored)
        allowed = np.setdiff1d(allowed, blocked)
    if not len(allowed):
        raise UsageError("the allow and block lists leave no item to recommend")
    return allowed

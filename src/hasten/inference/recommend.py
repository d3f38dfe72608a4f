"""Recommend items to the users of a run, or for new histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from hasten.arrays import Int64
from hasten.data.columns.checks import MAX_TIME
from hasten.data.columns.times import PER_SECOND
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, Histories, Vocabulary
from hasten.errors import DataError, UsageError
from hasten.inference.labels import indices_of
from hasten.inference.top_k import to_pandas, top_k
from hasten.ops.graph.csr import CSR
from hasten.scoring import RecommenderQueries

if TYPE_CHECKING:
    import pandas as pd

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


@dataclass(frozen=True, eq=False)
class Recommendations:
    """n recommended items, best first for each user.

    users: labels [Q]; user, item: int64 [n] indices of users and items; rank: int32 [n] from 1;
    score: float32 [n]. histories: the history of each user [Q]; known: its description.
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

    def to_frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame."""
        return to_pandas(self.to_table())


def recommend(
    loaded: LoadedRun,
    users: Sequence[object] | None = None,
    histories: Mapping[Any, Sequence[object]] | None = None,
    topk: int = 10,
    *,
    times: Mapping[Any, Sequence[float]] | None = None,
    exclude_seen: bool = True,
    allow: Sequence[object] | None = None,
    block: Sequence[object] | None = None,
    until: Until = "test",
) -> Recommendations:
    """Recommend the ``topk`` best items to users, or for new histories.

    users: labels; None: all users, unless histories are given. histories: item labels by user,
    oldest first, used instead of what the data know about that user. times: the times of the items
    in the histories, in the unit ``data.time_unit``; they replace the given order. Models that read
    times assume evenly spaced items without them.
    exclude_seen: omit the items of the history. allow, block: the only items that may appear, and
    the items that may not. until: the last part of the data in the history.
    Raises DataError for unknown labels, UsageError if the model or the arguments do not allow it.
    """
    if topk < 1:
        raise UsageError(f"topk {topk}: must be 1 or more")
    if users is not None and histories is not None:
        raise UsageError("give users or histories, not both")
    if times is not None and histories is None:
        raise UsageError("times belong to histories, which are not given")
    dataset = loaded.dataset
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"{loaded.config.model.name} completes a knowledge graph and recommends nothing: "
            "hasten predict RUN"
        )
    if histories is not None:
        labels, queries = _from_histories(loaded, dataset, histories, times)
        words = "the given histories alone"
        if times is None and loaded.model.reads_times:
            words += ", taken for evenly spaced in time"
    else:
        labels, queries = _from_users(dataset, users, until)
        words = _HISTORY_WORDS[until]
    allowed = _allowed(dataset.items, allow, block)
    seen = CSR.of(queries.history) if exclude_seen else None
    user, item, place, score = top_k(loaded.model, queries, len(dataset.items), topk, seen, allowed)
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
    )


def _from_users(
    dataset: Dataset, users: Sequence[object] | None, until: Until
) -> tuple[pa.Array, RecommenderQueries]:
    if users is None:
        index = np.arange(len(dataset.users), dtype=np.int64)
    else:
        remedy = "a user who is new can be given by a history"
        index = indices_of(dataset.users, users, "user", remedy)
    if not len(index):
        raise DataError("0 users are asked for: name at least one")
    history = dataset.histories(*_PARTS[until]).take(index)
    return dataset.users.take(index), RecommenderQueries(index, history)


def _from_histories(
    loaded: LoadedRun,
    dataset: Dataset,
    histories: Mapping[Any, Sequence[object]],
    times: Mapping[Any, Sequence[float]] | None,
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
    remedy = "leave them out of the history"
    items = indices_of(dataset.items, flat, "item", remedy)
    offsets = np.zeros(len(histories) + 1, np.int64)
    np.cumsum([len(items) for items in histories.values()], out=offsets[1:])
    users = pa.array([str(user) for user in histories], pa.string())
    new = np.full(len(histories), -1, np.int64)
    if times is None:
        return users, RecommenderQueries(new, Histories(offsets, items))
    data: Any = loaded.config.data  # of a recommender: InteractionOptions
    seconds = _seconds(histories, times, PER_SECOND[data.time_unit])
    # sort by history, then by time; ties keep their order
    order = np.lexsort((seconds, np.repeat(np.arange(len(new)), np.diff(offsets))))
    return users, RecommenderQueries(new, Histories(offsets, items[order], seconds[order]))


def _seconds(
    histories: Mapping[Any, Sequence[object]],
    times: Mapping[Any, Sequence[float]],
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
    items: Vocabulary, allow: Sequence[object] | None, block: Sequence[object] | None
) -> Int64 | None:
    """Ascending indices of the items that may appear; None: all items."""
    if allow is None and block is None:
        return None
    allowed = np.arange(len(items), dtype=np.int64)
    if allow is not None:
        allowed = np.unique(indices_of(items, allow, "allowed item", "take them off the list"))
    if block is not None:
        blocked = indices_of(items, block, "blocked item", "take them off the list")
        allowed = np.setdiff1d(allowed, blocked)
    if not len(allowed):
        raise UsageError("the allow and block lists leave no item to recommend")
    return allowed

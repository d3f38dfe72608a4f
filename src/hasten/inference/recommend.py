"""The best items for users of a run, or for new histories, from the run folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import torch

from hasten.arrays import Int64
from hasten.data.columns.checks import MAX_TIME
from hasten.data.columns.times import PER_SECOND
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, Histories, Vocabulary
from hasten.errors import DataError, UsageError
from hasten.evaluation.query_tiles import make_tiles
from hasten.evaluation.ranker import scoring
from hasten.inference.labels import indices_of
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.topk_all import topk_all
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
    """Ranked items, n rows, best first within each asker.

    askers: labels of who asked [Q]; asker, item: int64 [n] indices of askers and of the items;
    rank: int32 [n] from 1; score: float32 [n].
    histories: what was known of each asker [Q]; known: the same in words.
    """

    askers: pa.Array
    items: Vocabulary
    asker: Int64
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
        """How many askers nothing is known of, so that their items are the same for everyone."""
        return int((self.histories.lengths == 0).sum())

    @property
    def short(self) -> int:
        """How many askers got fewer than k items, because no more were left for them."""
        return int((np.bincount(self.asker, minlength=len(self.askers)) < self.topk).sum())

    def to_table(self) -> pa.Table:
        """Columns user_id, item_id, rank, score, and item_name where names are known."""
        columns: dict[str, pa.Array] = {
            "user_id": self.askers.take(pa.array(self.asker)),
            "item_id": self.items.take(self.item),
            "rank": pa.array(self.rank),
            "score": pa.array(self.score),
        }
        if self.items.names is not None:
            columns["item_name"] = self.items.names.take(pa.array(self.item))
        return pa.table(columns)

    def to_frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame, where pandas is installed."""
        if find_spec("pandas") is None:
            raise UsageError("to_frame() needs pandas: pip install pandas")
        frame: pd.DataFrame = self.to_table().to_pandas()
        return frame


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
    """The ``topk`` best items for users, or for histories that the run has never seen.

    users: labels; None: all, unless histories are given. histories: item labels by asker, oldest
    first; each stands alone, nothing known of a user of that label is added. times: those of the
    histories' events, in the training data's unit (data.time_unit), which then give the order; to
    a model that reads times, events without them are evenly spaced.
    exclude_seen: leave out the items of the history. allow, block: the only items that may
    appear, and those that may not. until: the last part of the data that counts as history.
    Raises DataError for unknown labels, UsageError for what the model or the request rules out.
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
        askers, queries = _from_histories(loaded, dataset, histories, times)
        words = "the given histories alone"
        if times is None and loaded.model.reads_times:
            words += ", taken for evenly spaced in time"
    else:
        askers, queries = _from_users(dataset, users, until)
        words = _HISTORY_WORDS[until]
    allowed = _allowed(dataset.items, allow, block)
    found = _rank(loaded, queries, len(dataset.items), topk, exclude_seen, allowed)
    return Recommendations(
        askers, dataset.items, *found, topk=topk, histories=queries.history, known=words
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
    empty = [str(asker) for asker, items in histories.items() if not len(items)]
    if empty or not histories:
        who = f" of {', '.join(map(repr, empty[:5]))}" if empty else ""
        raise DataError(f"the history{who} is empty: give at least one item")
    flat = [item for items in histories.values() for item in items]
    remedy = "leave them out of the history"
    items = indices_of(dataset.items, flat, "item", remedy)
    offsets = np.zeros(len(histories) + 1, np.int64)
    np.cumsum([len(items) for items in histories.values()], out=offsets[1:])
    askers = pa.array([str(asker) for asker in histories], pa.string())
    new = np.full(len(histories), -1, np.int64)
    if times is None:
        return askers, RecommenderQueries(new, Histories(offsets, items))
    data: Any = loaded.config.data  # of a recommender: InteractionOptions
    seconds = _seconds(histories, times, PER_SECOND[data.time_unit])
    # by history, then time, then as given: items and times stay together
    order = np.lexsort((seconds, np.repeat(np.arange(len(new)), np.diff(offsets))))
    return askers, RecommenderQueries(new, Histories(offsets, items[order], seconds[order]))


def _seconds(
    histories: Mapping[Any, Sequence[object]],
    times: Mapping[Any, Sequence[float]],
    per_second: int,
) -> Int64:
    """The times of all events one after the other, in whole seconds."""
    for asker, items in histories.items():
        count = len(times.get(asker, ()))
        if count != len(items):
            raise UsageError(f"the history of {str(asker)!r} has {len(items)} items, {count} times")
    flat = np.array([time for asker in histories for time in times[asker]], np.float64)
    if not np.all(np.abs(flat) < MAX_TIME):
        raise DataError("the times of the histories must be numbers that are unix times")
    return np.floor(flat / per_second).astype(np.int64)


def _allowed(
    items: Vocabulary, allow: Sequence[object] | None, block: Sequence[object] | None
) -> Int64 | None:
    """Indices of the items that may appear, ascending; None: all of them."""
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


def _rank(
    loaded: LoadedRun,
    queries: RecommenderQueries,
    count: int,
    topk: int,
    exclude_seen: bool,
    allowed: Int64 | None,
) -> tuple[Int64, Int64, Any, Any]:
    """asker, item, rank and score of every recommendation, each asker's best first."""
    model = loaded.model
    parts = []
    with scoring(model):
        for tile in make_tiles(queries.history.lengths):
            asked = queries.take(tile.padded)
            seen = CSR.of(asked.history) if exclude_seen else None
            scorer = model.scorer(asked)
            ids, scores = topk_all(scorer, len(asked), count, min(topk, count), seen, allowed)
            ids, scores = ids[: tile.count].cpu(), scores[: tile.count].cpu()
            row, place = (found.numpy() for found in torch.nonzero(ids >= 0, as_tuple=True))
            parts.append(
                (tile.rows[row], ids.numpy()[row, place], place, scores.numpy()[row, place])
            )
    asker, item, place, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((place, asker))
    return asker[order], item[order], (place[order] + 1).astype(np.int32), score[order]

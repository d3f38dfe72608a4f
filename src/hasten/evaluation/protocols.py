"""Evaluation protocols for users and items: queries, targets and candidates.

A query is a user with a history: the training items for validation, the training and validation
items for the test. Its targets are the distinct items of the user in that part. Users without
interactions in the part have no query. Users without a history are left out; the protocol counts
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, ragged_positions
from hasten.config import EvaluationOptions
from hasten.data.audit import seconds_between
from hasten.data.columns import counter_random as counter
from hasten.data.columns.checks import counted
from hasten.data.graph_store.mapped import MappedGraph
from hasten.data.tables import (
    PART_NAMES,
    TEST,
    TRAIN,
    VALID,
    AnyDataset,
    Dataset,
    KnowledgeGraph,
)
from hasten.errors import ConfigurationError
from hasten.evaluation.completion import CompletionTask, completion_task
from hasten.evaluation.metrics import Ties
from hasten.evaluation.other_libraries import peer_words
from hasten.evaluation.sampled_candidates import SAMPLED, sampled_candidates
from hasten.ops.graph.csr import CSR
from hasten.ops.random import Stream, key
from hasten.scoring import RecommenderQueries

#: what becomes of targets that are masked items, for descriptions
SEEN = {"miss": "misses", "unmask": "candidates"}
#: with a larger share of repeated training events, the ranking with the history selects the model
REPEATS = 0.05


@dataclass(frozen=True)
class Protocol:
    """How a metric was measured. Metrics are comparable only if their protocols are equal.

    split: as in ``Dataset.split``; part: the predicted part; known: the parts in the history;
    items: the number of items; trained: the number of training items if only these are candidates;
    mask_history: whether the items of the history (``mask_train``: its training items) are no
    candidates (of full rankings, both are reported); seen_targets: what becomes of targets that are
    masked items; dropped: the number of targets left out, None if none can be; like: the library
    whose protocol this is, or "" (``peer_words``); repeats: the share of repeated training events,
    where it decided; left_out: the number of users without a history; users: the number of users
    that are ranked; tied: of these, whose history ends at the time of their first target; untied:
    the number of users left out because their history does not end before it, None if they are
    kept; sampled_queries: the number of users that are ranked if they are a sample.
    """

    split: str
    part: str
    known: tuple[str, ...]
    candidates: Literal["full", "trained", "uni100", "pop100"]
    items: int
    mask_history: bool
    left_out: int = 0
    ties: Ties = "realistic"
    users: int = 0
    tied: int = 0
    untied: int | None = None
    repeats: float | None = None
    trained: int | None = None
    mask_train: bool = False
    seen_targets: Literal["rank", "unmask", "miss", "drop"] = "rank"
    dropped: int | None = None
    like: str = ""
    sampled_queries: int | None = None

    def text(self) -> str:
        """The description that is reported with every metric."""
        if self.candidates in ("full", "trained"):
            among = f"{self.items:,} items"
            if self.trained is not None:
                among = f"the {self.trained:,} training items"
            what = "training items" if self.mask_train else "history"
            how = f"full ranking of {among}, {what} {'masked' if self.mask_history else 'kept'}"
            if self.repeats is not None:
                how += f" ({self.repeats:.0%} of the training events are repeats)"
        else:
            others = "uniform others" if self.candidates == "uni100" else "popular others"
            how = f"target among {SAMPLED} {others} of {self.items:,} items that the user never met"
        words = f"{self.split}, {how}, {self.ties} ties"
        if self.sampled_queries is not None:
            words += f", {self.sampled_queries:,} of {counted(self.users, 'user')} sampled"
        if self.left_out:
            words += f", {counted(self.left_out, 'user')} without a history left out"
        if self.untied is not None:
            words += f", {counted(self.untied, 'user')} with ties in time left out"
        elif self.tied:
            words += f", {self.tied:,} of {counted(self.users, 'user')} with ties in time"
        if self.seen_targets in ("miss", "unmask"):
            words += f", masked targets are {SEEN[self.seen_targets]}"
        if self.dropped is not None:
            what = "masked targets" if self.trained is None else "masked or untrained targets"
            words += f", {self.dropped:,} {what} left out"
        return words + self.like


@dataclass(frozen=True, eq=False)
class RankingTask:
    """Queries, their targets and the candidates of the ranking.

    targets: distinct items of each query. excluded: the distinct items that are masked, which are
    counted apart, or None. candidates: int64 [Q, 101] with the target first, or None for all items.
    subset: bool [N], the candidates of all queries; None: all items. rank_last: bool [S], targets
    that are ranked last if items are masked.
    """

    queries: RecommenderQueries
    targets: CSR
    excluded: CSR | None
    candidates: Int64 | None
    protocol: Protocol
    subset: NDArray[np.bool_] | None = None
    rank_last: NDArray[np.bool_] | None = None

    @property
    def item_count(self) -> int:
        """The number of items."""
        return self.protocol.items

    @property
    def offsets(self) -> Int64:
        """[Q + 1] the targets of each query."""
        return self.targets.offsets

    @property
    def masked(self) -> bool:
        """Whether excluded items are no candidates, in the metrics that select the model."""
        return self.protocol.mask_history

    def sampled(self, count: int, seed: int) -> RankingTask:
        """The task of so many of the users, sampled with the seed."""
        if count >= len(self.queries):
            return self
        rows = sampled_rows(len(self.queries), count, seed)
        targets, _ = ragged_positions(self.targets.offsets, rows)
        return replace(
            self,
            queries=self.queries.take(rows),
            targets=self.targets.take(rows),
            excluded=None if self.excluded is None else self.excluded.take(rows),
            candidates=None if self.candidates is None else self.candidates[rows],
            protocol=replace(self.protocol, sampled_queries=count),
            rank_last=None if self.rank_last is None else self.rank_last[targets],
        )

    def competitors(self, masked: bool) -> Int64:
        """[S] the number of other candidates of each target, with or without excluded items."""
        among = self.item_count if self.candidates is None else self.candidates.shape[1]
        if self.subset is not None:
            among = int(self.subset.sum())
        if self.excluded is None or not masked:
            return np.full(len(self.targets.items), among - 1, np.int64)
        taken = self.targets.listed_in(self.excluded)
        return np.asarray(among - self.excluded.lengths[self.targets.rows] - ~taken, np.int64)


def sampled_rows(count: int, size: int, seed: int) -> Int64:
    """int64 [size] some of ``count`` rows, ascending, sampled with the seed."""
    random = counter.bits(counter.key(seed, Stream.CANDIDATES, -1), count)
    return np.sort(np.argsort(random, kind="stable")[:size])


AnyTask = RankingTask | CompletionTask


def ranking_task(dataset: AnyDataset, part: int, options: EvaluationOptions, seed: int) -> AnyTask:
    """The ranking task of VALID or TEST. It has no queries if the part is empty."""
    if isinstance(dataset, KnowledgeGraph):
        chosen, count = None, options.triples
        if isinstance(dataset, MappedGraph) and isinstance(count, int):
            # the queries of all triples need not fit into memory
            chosen = sampled_rows(dataset.sizes[part], min(count, dataset.sizes[part]), seed)
        return completion_task(dataset, part, options, chosen)
    return recommendation_task(dataset, part, options, seed)


def recommendation_task(
    dataset: Dataset, part: int, options: EvaluationOptions, seed: int
) -> RankingTask:
    """The task of ranking the items of users.

    seed: for the candidates of ``uni100``, which depend only on the seed, the part and the user.
    Raises ConfigurationError or DataError if the protocol does not fit the data.
    """
    assert part in (VALID, TEST)
    known = (TRAIN,) if part == VALID else (TRAIN, VALID)
    held_out, histories = dataset.histories(part), dataset.histories(*known)
    predicted = held_out.lengths > 0
    users = np.flatnonzero(predicted & (histories.lengths > 0))
    between, untied = seconds_between(histories, held_out, users), None
    if options.users == "untied":
        if between is None:
            raise ConfigurationError(
                "evaluation.users untied needs a time for every event, and these data have none"
            )
        untied, users, between = int((between <= 0).sum()), users[between > 0], None
    count, tied = len(users), 0 if between is None else int((between == 0).sum())
    if histories.mapped and isinstance(options.users, int) and options.users < count:
        # the histories of all users need not fit into memory
        users, between = users[sampled_rows(count, options.users, seed)], None
    full = options.candidates in ("full", "trained")
    if not full:
        _refuse_with_samples(options)
    masked, repeats = options.mask_history, None
    if masked == "auto":
        share = repeated_share(dataset)
        masked = full and share <= REPEATS
        repeats = None if masked or not full else share
    targets, subset = CSR.of(held_out.take(users)).distinct(), None
    sampled, dropped = len(users), np.zeros(len(targets.items), bool)
    drops = options.seen_targets == "drop" or options.candidates == "trained"
    if options.candidates == "trained":
        subset = dataset.item_counts(TRAIN) > 0
        dropped |= ~subset[targets.items]
    excluded, seen = None, None
    if full:
        of_masked = dataset.histories(TRAIN) if masked == "train" else histories
        excluded = CSR.of(of_masked.take(users)).distinct()
        excluded = excluded if subset is None else excluded.keep(subset[excluded.items])
        if options.seen_targets == "unmask":
            excluded = excluded.keep(~excluded.listed_in(targets))
        seen = targets.listed_in(excluded)
        dropped |= seen & (options.seen_targets == "drop")
    if dropped.any():
        left = targets.keep(~dropped)
        query_rows = np.flatnonzero(left.lengths > 0)
        users, targets = users[query_rows], left.take(query_rows)
        excluded = None if excluded is None else excluded.take(query_rows)
        seen = None if excluded is None else targets.listed_in(excluded)
        tied = tied if between is None else int((between[query_rows] == 0).sum())
    candidates = None
    if not full:
        base = key(seed, Stream.CANDIDATES, part)
        by_popularity = options.candidates == "pop100"
        candidates = sampled_candidates(dataset, users, targets, base, by_popularity)
    protocol = Protocol(
        split=dataset.split,
        part=PART_NAMES[part],
        known=tuple(PART_NAMES[number] for number in known),
        candidates=options.candidates,
        items=len(dataset.items),
        mask_history=bool(masked),
        left_out=int((predicted & (histories.lengths == 0)).sum()),
        ties=options.ties,
        users=len(users) if sampled == count else count,
        tied=tied,
        untied=untied,
        repeats=repeats,
        trained=None if subset is None else int(subset.sum()),
        mask_train=masked == "train",
        seen_targets=options.seen_targets,
        dropped=int(dropped.sum()) if drops else None,
        like=peer_words(options.like, dataset.split),
        sampled_queries=sampled if sampled < count else None,
    )
    return RankingTask(
        RecommenderQueries(users, histories.take(users)),
        targets,
        excluded,
        candidates,
        protocol,
        subset,
        seen if options.seen_targets == "miss" else None,
    )


def _refuse_with_samples(options: EvaluationOptions) -> None:
    """Refuse options of masked items with sampled candidates, which the user never met."""
    given = {"mask_history": options.mask_history in (True, "train")}
    given["seen_targets"] = options.seen_targets != "rank"
    for name in (name for name, wrong in given.items() if wrong):
        raise ConfigurationError(
            f"evaluation.{name} has no effect with evaluation.candidates {options.candidates}, "
            "whose candidates are items that the user never met: leave it out"
        )


def repeated_share(dataset: Dataset) -> float:
    """The share of training events whose user has met the item before."""
    histories = dataset.histories(TRAIN)
    total = int(histories.lengths.sum())
    distinct = sum(len(CSR.of(block).distinct().items) for block in histories.blocks())
    return 1 - distinct / max(1, total)

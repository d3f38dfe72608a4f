"""Evaluation protocols for users and items: queries, targets and candidates.

A query is a user with a history: the training items for validation, the training and validation
items for the test. Its targets are the distinct items of the user in that part. Users without
interactions in the part have no query. Users without a history are left out; the protocol counts
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from hasten.arrays import Int64
from hasten.config import EvaluationOptions
from hasten.data.audit import seconds_between
from hasten.data.columns.checks import counted
from hasten.data.tables import (
    PART_NAMES,
    TEST,
    TRAIN,
    VALID,
    AnyDataset,
    Dataset,
    KnowledgeGraph,
)
from hasten.errors import ConfigurationError, DataError
from hasten.evaluation.completion import CompletionTask, completion_task
from hasten.evaluation.metrics import Ties
from hasten.ops.graph.csr import CSR
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import Stream, key
from hasten.scoring import RecommenderQueries

#: negative samples of ``uni100``
SAMPLED = 100
#: with a larger share of repeated training events, the ranking with the history selects the model
REPEATS = 0.05


@dataclass(frozen=True)
class Protocol:
    """How a metric was measured. Metrics are comparable only if their protocols are equal.

    split: as in ``Dataset.split``; part: the predicted part; known: the parts in the history;
    items: the number of items; mask_history: whether the items of the history are no candidates (of
    full rankings, both are reported); repeats: the share of repeated training events, where it
    decided; left_out: the number of users without a history; users: the number of users that are
    ranked; tied: of these, whose history ends at the time of their first target; untied: the number
    of users left out because their history does not end before it, None if they are kept.
    """

    split: str
    part: str
    known: tuple[str, ...]
    candidates: Literal["full", "uni100"]
    items: int
    mask_history: bool
    left_out: int = 0
    ties: Ties = "realistic"
    users: int = 0
    tied: int = 0
    untied: int | None = None
    repeats: float | None = None

    def text(self) -> str:
        """The description that is reported with every metric."""
        if self.candidates == "full":
            history = "masked" if self.mask_history else "kept"
            how = f"full ranking of {self.items:,} items, history {history}"
            if self.repeats is not None:
                how += f" ({self.repeats:.0%} of the training events are repeats)"
        else:
            how = (
                f"target among {SAMPLED} uniform others of {self.items:,} items that the user "
                "never met"
            )
        words = f"{self.split}, {how}, {self.ties} ties"
        if self.left_out:
            words += f", {counted(self.left_out, 'user')} without a history left out"
        if self.untied is not None:
            words += f", {counted(self.untied, 'user')} with ties in time left out"
        elif self.tied:
            words += f", {self.tied:,} of {counted(self.users, 'user')} with ties in time"
        return words


@dataclass(frozen=True, eq=False)
class RankingTask:
    """Queries, their targets and the candidates of the ranking.

    targets: distinct items of each query. excluded: the distinct items of its history, which are
    counted apart, or None. candidates: int64 [Q, 101] with the target first, or None for all items.
    """

    queries: RecommenderQueries
    targets: CSR
    excluded: CSR | None
    candidates: Int64 | None
    protocol: Protocol

    #: targets that are ranked last: none
    rank_last: None = None

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

    def competitors(self, masked: bool) -> Int64:
        """[S] the number of other candidates of each target, with or without excluded items."""
        among = self.item_count if self.candidates is None else self.candidates.shape[1]
        if self.excluded is None or not masked:
            return np.full(len(self.targets.items), among - 1, np.int64)
        rows, width = self.targets.rows, self.item_count
        seen = self.excluded.rows * width + self.excluded.items
        taken = np.isin(rows * width + self.targets.items, seen)
        return np.asarray(among - self.excluded.lengths[rows] - ~taken, np.int64)


AnyTask = RankingTask | CompletionTask


def ranking_task(dataset: AnyDataset, part: int, options: EvaluationOptions, seed: int) -> AnyTask:
    """The ranking task of VALID or TEST. It has no queries if the part is empty."""
    if isinstance(dataset, KnowledgeGraph):
        return completion_task(dataset, part, options)
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
    wanted, histories = dataset.histories(part), dataset.histories(*known)
    predicted = wanted.lengths > 0
    users = np.flatnonzero(predicted & (histories.lengths > 0))
    between, untied, tied = seconds_between(histories, wanted, users), None, 0
    if options.users == "untied":
        if between is None:
            raise ConfigurationError(
                "evaluation.users untied needs a time for every event, and these data have none"
            )
        untied, users = int((between <= 0).sum()), users[between > 0]
    elif between is not None:
        tied = int((between == 0).sum())
    history = histories.take(users)
    targets = CSR.of(wanted).take(users).distinct()
    full = options.candidates == "full"
    masked, repeats = options.mask_history, None
    if masked == "auto":
        share = repeated_share(dataset)
        masked = full and share <= REPEATS
        repeats = None if masked or not full else share
    protocol = Protocol(
        split=dataset.split,
        part=PART_NAMES[part],
        known=tuple(PART_NAMES[number] for number in known),
        candidates=options.candidates,
        items=len(dataset.items),
        mask_history=masked,
        left_out=int((predicted & (histories.lengths == 0)).sum()),
        ties=options.ties,
        users=len(users),
        tied=tied,
        untied=untied,
        repeats=repeats,
    )
    candidates = None
    if not full:
        if masked:
            raise ConfigurationError(
                "evaluation.mask_history has no effect with evaluation.candidates uni100, whose "
                "candidates are items that the user never met: leave it out"
            )
        candidates = _sampled(dataset, users, targets, key(seed, Stream.CANDIDATES, part))
    excluded = CSR.of(history).distinct() if full else None
    return RankingTask(RecommenderQueries(users, history), targets, excluded, candidates, protocol)


def repeated_share(dataset: Dataset) -> float:
    """The share of training events whose user has met the item before."""
    histories = dataset.histories(TRAIN)
    distinct = CSR.of(histories).distinct()
    return 1 - len(distinct.items) / max(1, len(histories.items))


def _sampled(dataset: Dataset, users: Int64, targets: CSR, base: int) -> Int64:
    """[Q, 101] the target and 100 uniform samples (with replacement) of unseen items."""
    if np.any(targets.lengths > 1):
        raise ConfigurationError(
            "evaluation.candidates uni100 ranks one target a user, but this split gives some "
            f"users several ({dataset.split}): use full"
        )
    met = CSR.of(dataset.histories(TRAIN, VALID, TEST)).take(users).distinct()
    full = np.flatnonzero(met.lengths >= len(dataset.items))
    if len(full):
        label = dataset.users.take(users[full[:1]])[0].as_py()
        raise DataError(
            f"user {label!r} has met all {len(dataset.items):,} items, so there are no others to "
            "draw: use evaluation.candidates full"
        )
    known = KnownItems.build(met.rows, met.items, len(users), len(dataset.items))
    rows = torch.arange(len(users))[:, None]
    others = negatives(known, rows, base, torch.from_numpy(users)[:, None], torch.arange(SAMPLED))
    return np.concatenate([targets.items[:, None], others.numpy()], axis=1)

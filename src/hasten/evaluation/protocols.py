"""What is ranked against what: the protocol of a number, and the task that it poses.

A query is a user with the history known at that moment: the train items for validation, train and
valid items for the test. Its targets are the user's distinct items of that part. Users without an
event of the part are no queries; users whose history is empty cannot be asked about and are left
out, which the protocol's text says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import EvaluationOptions
from hasten.data.tables import (
    PART_NAMES,
    TEST,
    TRAIN,
    VALID,
    AnyDataset,
    Dataset,
    Histories,
    KnowledgeGraph,
)
from hasten.errors import ConfigurationError, DataError
from hasten.evaluation.completion import CompletionTask, completion_task
from hasten.evaluation.metrics import Ties
from hasten.ops.graph.csr import CSR
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import Stream, key
from hasten.scoring import RecommenderQueries

#: the others of ``uni100``
SAMPLED = 100


@dataclass(frozen=True)
class Protocol:
    """How a number came about; two numbers compare only under the same protocol.

    split: the words of ``Dataset.split``; part: what is predicted; known: the parts whose items
    are the history; items: size of the catalogue; left_out: users without a history; tied: users
    left out because their history does not end before what is predicted, None if they are asked.
    """

    split: str
    part: str
    known: tuple[str, ...]
    candidates: Literal["full", "uni100"]
    items: int
    mask_history: bool
    left_out: int = 0
    ties: Ties = "realistic"
    tied: int | None = None

    def text(self) -> str:
        """The words that travel with every number of a run, validation or test."""
        if self.candidates == "full":
            history = "masked" if self.mask_history else "kept"
            how = f"full ranking of {self.items:,} items, history {history}"
        else:
            how = (
                f"target among {SAMPLED} uniform others of {self.items:,} items that the user "
                "never met"
            )
        words = f"{self.split}, {how}, {self.ties} ties"
        if self.left_out:
            who = "user" if self.left_out == 1 else "users"
            words += f", {self.left_out:,} {who} without a history left out"
        if self.tied is not None:
            who = "user" if self.tied == 1 else "users"
            words += f", {self.tied:,} {who} with ties in time left out"
        return words

    def same_as(self, other: Protocol) -> bool:
        """Whether numbers under both may be compared."""
        return self == other


@dataclass(frozen=True, eq=False)
class RankingTask:
    """Queries with their targets, and the candidates that these compete with.

    targets: distinct items a query. excluded: items a query that do not compete, or None.
    candidates: int64 [Q, 101], the target first, or None for the whole catalogue.
    """

    queries: RecommenderQueries
    targets: CSR
    excluded: CSR | None
    candidates: Int64 | None
    protocol: Protocol

    #: targets that count as misses whatever their score
    last: None = None

    @property
    def items(self) -> int:
        """Size of the catalogue."""
        return self.protocol.items

    @property
    def offsets(self) -> Int64:
        """[Q + 1] the targets that count together in the mean: those of a query."""
        return self.targets.offsets

    @property
    def competitors(self) -> Int64:
        """[T] how many candidates compete with each target."""
        if self.candidates is not None:
            return np.full(len(self.targets.items), self.candidates.shape[1] - 1, np.int64)
        if self.excluded is None:
            return np.full(len(self.targets.items), self.items - 1, np.int64)
        excluded = self.excluded.distinct()
        rows, width = self.targets.rows, self.items
        taken = np.isin(rows * width + self.targets.items, excluded.rows * width + excluded.items)
        return np.asarray(self.items - excluded.lengths[rows] - ~taken, np.int64)


AnyTask = RankingTask | CompletionTask


def ranking_task(dataset: AnyDataset, part: int, options: EvaluationOptions, seed: int) -> AnyTask:
    """The task of predicting VALID or TEST; without queries where the part is empty."""
    if isinstance(dataset, KnowledgeGraph):
        return completion_task(dataset, part, options)
    return recommendation_task(dataset, part, options, seed)


def recommendation_task(
    dataset: Dataset, part: int, options: EvaluationOptions, seed: int
) -> RankingTask:
    """The next items of users as a task.

    seed: of the candidates that ``uni100`` draws; they depend on the seed, the part and the user
    alone. Raises ConfigurationError or DataError where the protocol cannot be followed.
    """
    assert part in (VALID, TEST)
    known = (TRAIN,) if part == VALID else (TRAIN, VALID)
    wanted, histories = dataset.histories(part), dataset.histories(*known)
    asked = wanted.lengths > 0
    users = np.flatnonzero(asked & (histories.lengths > 0))
    tied = None
    if options.users == "untied":
        kept = _untied(wanted.take(users), histories.take(users))
        tied, users = int((~kept).sum()), users[kept]
    history = histories.take(users)
    targets = CSR.of(wanted).take(users).distinct()
    protocol = Protocol(
        split=dataset.split,
        part=PART_NAMES[part],
        known=tuple(PART_NAMES[number] for number in known),
        candidates=options.candidates,
        items=len(dataset.items),
        mask_history=options.mask_history,
        left_out=int((asked & (histories.lengths == 0)).sum()),
        ties=options.ties,
        tied=tied,
    )
    candidates = None
    if options.candidates == "uni100":
        if options.mask_history:
            raise ConfigurationError(
                "evaluation.mask_history has no effect with evaluation.candidates uni100, whose "
                "candidates are items that the user never met: leave it out"
            )
        candidates = _sampled(dataset, users, targets, key(seed, Stream.CANDIDATES, part))
    excluded = CSR.of(history) if options.mask_history else None
    return RankingTask(RecommenderQueries(users, history), targets, excluded, candidates, protocol)


def _untied(wanted: Histories, histories: Histories) -> NDArray[np.bool_]:
    """[Q] whether a user's history ends before the first event that is to be predicted."""
    if wanted.times is None or histories.times is None:
        raise ConfigurationError(
            "evaluation.users untied needs a time for every event, and these data have none"
        )
    return np.asarray(
        histories.times[histories.offsets[1:] - 1] < wanted.times[wanted.offsets[:-1]]
    )


def _sampled(dataset: Dataset, users: Int64, targets: CSR, base: int) -> Int64:
    """[Q, 101] the target, then 100 uniform items (with repetition) that the user never met."""
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

"""Check an update: the validation metric of users that the run knows, before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.comparison.verdict import Margin
from hasten.config import RunConfig
from hasten.data.tables import VALID
from hasten.errors import HastenError, UsageError
from hasten.evaluation.completion import CompletionTask
from hasten.evaluation.metrics import higher_is_better
from hasten.evaluation.protocols import AnyTask, ranking_task
from hasten.evaluation.query_tiles import TileMemoryRetry
from hasten.evaluation.ranker import evaluate, values_by_query
from hasten.models.interface import Model
from hasten.models.rows import KnownRows
from hasten.updating.joined import Joined


class UpdateRefused(HastenError):
    """An update lost more than the margin on the validation part."""

    code = "update_refused"


@dataclass(frozen=True)
class Check:
    """The validation metric of the run and of its update on the same queries.

    before: the weights of the run, with first rows for new ids; queries: how many.
    """

    metric: str
    before: float
    after: float
    queries: int
    margin: str
    accepted: bool

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def text(self) -> str:
        change = (self.after - self.before) / abs(self.before) if self.before else 0.0
        return (
            f"{self.metric} on validation, {self.queries:,} queries of known ids: "
            f"{self.before:.4f} before, {self.after:.4f} after ({change:+.1%}, margin "
            f"{self.margin})"
        )


class Checker:
    """The validation queries whose ids the run knows, and the metric of the run on them.

    Raises:
        UsageError: there are none.
    """

    def __init__(
        self, joined: Joined, known: KnownRows, config: RunConfig, margin: Margin, model: Model
    ) -> None:
        self.config, self.margin, self.metric = config, margin, config.evaluation.metrics[0]
        self.task = ranking_task(joined.dataset, VALID, config.evaluation, config.seed)
        self.known = _known_targets(self.task, known)
        if not self.known.any():
            raise UsageError(
                "--check needs a validation part with ids of the run, and there is none: leave "
                "--check out"
            )
        self.before = self._measure(model)

    def _measure(self, model: Model) -> float:
        device = next(model.parameters()).device
        with torch.no_grad():
            evaluation = evaluate(
                model,
                self.task,
                [self.metric],
                device=device,
                memory_retry=TileMemoryRetry(lambda: None),
            )
        assert evaluation.rank_counts is not None
        values = values_by_query(self.task, evaluation.rank_counts, [self.metric])[self.metric]
        return float(values.sums[self.known].sum() / max(1, values.counts[self.known].sum()))

    def compare(self, model: Model) -> Check:
        """The metric of the updated model beside that of the run."""
        after = self._measure(model)
        lost = self.before - after if higher_is_better(self.metric) else after - self.before
        most = self.margin.value * (abs(self.before) if self.margin.relative else 1.0)
        count = int(self.known.sum())
        return Check(self.metric, self.before, after, count, self.margin.text(), lost <= most)


def _known_targets(task: AnyTask, known: KnownRows) -> NDArray[np.bool_]:
    """Which users, or which targets of triples, have only ids that the run knows."""
    if not isinstance(task, CompletionTask):
        return np.asarray(known.old_row["users"][task.queries.user] >= 0)
    entity, relation = known.old_row["entities"], known.old_row["relations"]
    queries, row = task.queries, task.targets.rows
    is_known = (entity[queries.entity] >= 0) & (relation[queries.relation % len(relation)] >= 0)
    return np.asarray(is_known[row] & (entity[task.targets.items] >= 0))

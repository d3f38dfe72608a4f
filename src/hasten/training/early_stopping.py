"""Model selection and early stopping by the validation metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hasten.config import Patience
from hasten.evaluation.metrics import higher_is_better


@dataclass
class EarlyStopping:
    """Keeps the best validation value, and counts evaluations without improvement.

    A non-finite value is never the best.
    """

    metric: str
    patience: Patience | None
    best: float | None = None
    best_epoch: int = 0
    evaluations_since: int = 0
    last_epoch: int = 0

    def update(self, value: float, epoch: int) -> bool:
        """Record the value after ``epoch`` epochs; True if it is the best so far."""
        self.last_epoch = epoch
        better = math.isfinite(value) and (
            self.best is None
            or (value > self.best if higher_is_better(self.metric) else value < self.best)
        )
        if better:
            self.best, self.best_epoch, self.evaluations_since = value, epoch, 0
        else:
            self.evaluations_since += 1
        return better

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        if self.patience is None:
            return False
        if self.patience.unit == "evaluations":
            return self.evaluations_since >= self.patience.count
        return self.evaluations_since > 0 and (
            self.last_epoch - self.best_epoch >= self.patience.count
        )

    def state(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "evaluations_since": self.evaluations_since,
            "last_epoch": self.last_epoch,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.metric = state["metric"]
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self.evaluations_since, self.last_epoch = state["evaluations_since"], state["last_epoch"]

"""The learning rate of every step, as a pure function of the step's number."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hasten.config import TrainingOptions


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then constant, linear or cosine down to ``min_lr`` at the last step."""

    lr: float
    min_lr: float
    shape: str
    warmup: int
    total: int

    @classmethod
    def of(cls, options: TrainingOptions, steps_per_epoch: int) -> Schedule:
        return cls(
            lr=options.lr,
            min_lr=options.min_lr,
            shape=options.schedule,
            warmup=options.warmup_steps,
            total=options.epochs * steps_per_epoch,
        )

    def at(self, step: int) -> float:
        """The learning rate of optimizer step ``step`` (from 0)."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.shape == "constant":
            return self.lr
        progress = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        left = 1 - progress if self.shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.min_lr + (self.lr - self.min_lr) * left

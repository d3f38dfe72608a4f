"""The learning rate of every step, as a pure function of the step's number."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hasten.config import TrainingOptions


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then one of four shapes.

    ``constant``; ``linear`` and ``cosine``, which fall to ``min_lr`` at the last step;
    ``inverse-sqrt``: divided by the square root of the number of steps, as in Adagrad (Duchi et al.
    2011). It does not depend on the length of the run.
    """

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
        if self.shape == "inverse-sqrt":
            return self.lr / math.sqrt(step - self.warmup + 1)
        progress = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        left = 1 - progress if self.shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.min_lr + (self.lr - self.min_lr) * left

"""What a run came to: its metrics with their protocol, its costs, the switches in effect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hasten.config import RunConfig
from hasten.training.machine import allocator_report
from hasten.training.memory_cleanup import can_release
from hasten.training.trainer import Trainer


@dataclass(frozen=True)
class Summary:
    """What a run came to; ``to_json`` is what ``hasten train --json`` prints.

    selected: with --refit, what the run came to that selected the number of epochs.
    """

    run: Path
    model: str
    data: str
    epochs: int
    valid: dict[str, float]
    test: dict[str, float]
    protocol: str
    seconds: dict[str, float]
    examples_per_second: float
    peak_memory_bytes: int
    effective: dict[str, Any]
    stopped_by: str
    best_epoch: int
    selected: dict[str, Any] | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Summary:
        """The inverse of :meth:`to_json`, but that a number which was not finite is None."""
        return cls(**{**values, "run": Path(values["run"])})

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "run": str(self.run)}


def switches_in_effect(trainer: Trainer, config: RunConfig) -> dict[str, Any]:
    """The switches as they were in effect, not as they were asked for."""
    options, processes = config.training, trainer.processes
    return {
        "device": str(processes.device),
        "devices": processes.world,
        "backend": processes.backend,
        "threads": torch.get_num_threads(),
        "precision": trainer.steps[0].precision.name if trainer.steps else "fp32",
        "batch_size": options.batch_size,
        "batch_size_per_device": options.batch_size / processes.world,
        "lr": options.lr,
        "accumulate": options.accumulate,
        "recompute": options.recompute,
        "cleanup_every": trainer.cleanup_every if can_release(processes.device) else None,
        "compile": [report.to_json() for report in trainer.compiled] or "off",
        "optimizer": f"{options.optimizer} (fused)",
        "eval_every": config.evaluation.every,
        "average": options.average if trainer.average is not None else None,
        "clip_norm": options.clip_norm,
        "bad_steps": sum(int(step.bad) for step in trainer.steps),
        "allocator": allocator_report(),
        "spin_count": os.environ.get("GOMP_SPINCOUNT"),
    }

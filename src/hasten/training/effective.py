"""Which options were in effect in a run, for its ``metrics.json``."""

from __future__ import annotations

import os
from typing import Any

import torch

from hasten.config import RunConfig
from hasten.runs.allocator import allocator_report
from hasten.training.memory import can_release
from hasten.training.trainer import Trainer


def switches_in_effect(trainer: Trainer, config: RunConfig) -> dict[str, Any]:
    """The options as they were in effect, not as they were requested."""
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
        "compile": [report.to_json() for report in trainer.state.compiled] or "off",
        "optimizer": f"{options.optimizer} (fused)",
        "eval_every": config.evaluation.every,
        "average": options.average if trainer.state.average is not None else None,
        "clip_norm": options.clip_norm,
        "bad_steps": sum(int(step.bad) for step in trainer.steps),
        "allocator": allocator_report(),
        "spin_count": os.environ.get("GOMP_SPINCOUNT"),
    }

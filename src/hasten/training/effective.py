"""The options that were in effect in a run, for its ``metrics.json``."""

from __future__ import annotations

import os
from typing import Any

import torch

from hasten.distributed.device import describe_device
from hasten.models.supports import Supports
from hasten.ops.triton.choice import operations_in_triton
from hasten.runs.allocator import allocator_report
from hasten.training.memory.device import can_release, peak_bytes
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.precision import uses_tf32
from hasten.training.trainer import Trainer


def options_in_effect(trainer: Trainer, eval_every: int) -> dict[str, Any]:
    """The options as they were in effect, not as they were given.

    Those of gradient steps are None for a model that has none.
    """
    options, processes = trainer.config.training, trainer.processes
    supports, trained = Supports.of(type(trainer.model)), bool(trainer.steppers)
    retreats = trainer.state.retreats
    recompute = options.recompute or bool(retreats and retreats[-1]["recompute"])
    on_cuda = processes.device.type == "cuda"
    matmul = "tf32" if uses_tf32(options.matmul, processes.device) else "highest"
    training = {
        "precision": trainer.steppers[0].precision.name if trained else None,
        "matmul": matmul if trained and supports.precision else None,
        "pinned": trainer.state.pins.found or None,
        "batch_size": options.batch_size,
        "batch_size_per_device": options.batch_size / processes.world,
        "lr": options.lr,
        "accumulate": trainer.steppers[0].micro_batch_count if trained else None,
        "recompute": recompute and supports.recompute,
        "retreats": retreats or None,
        "cleanup_every": trainer.cleanup_every if can_release(processes.device) else None,
        "compile": [report.to_json() for report in trainer.state.compile_reports] or "off",
        "capture": trainer.capture_report(),
        "triton": operations_in_triton() or None,
        "optimizer": f"{options.optimizer} (fused)",
        "sharded_tables": trainer.sharded_tables.names or None,
        "updates_rows": any(isinstance(s.optimizer, RowAdam) for s in trainer.steppers),
        "eval_every": eval_every,
        "average": options.average,
        "clip_norm": options.clip_norm,
        "bad_steps": sum(  # the name in existing metrics.json files
            int(stepper.nonfinite_steps) for stepper in trainer.steppers
        ),
    }
    return {
        "device": str(processes.device),
        "device_name": describe_device(processes.device),
        "device_peak_bytes": peak_bytes(processes.device) if on_cuda else None,
        "devices": processes.world,
        "backend": processes.backend,
        "threads": torch.get_num_threads(),
        **(training if trained else dict.fromkeys(training)),
        "allocator": allocator_report(),
        "spin_count": os.environ.get("GOMP_SPINCOUNT"),
    }

"""Resolve the options that depend on the number of processes; warn of those without effect."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hasten.config import RunConfig
from hasten.distributed.processes import Processes
from hasten.training.memory.device import can_release
from hasten.training.precision import has_tf32, slow_precision


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration that does not depend on the number of processes, and what to log."""

    config: RunConfig
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def resolve_config(config: RunConfig, processes: Processes) -> ResolvedConfig:
    """Replace ``batch_size_per_device`` and ``lr_scaling`` by batch size and learning rate.

    The warnings name options that have no effect with this number of processes or this device.
    """
    options, world = config.training, processes.world
    notes, warnings = [], []
    changes: dict[str, object] = {"batch_size_per_device": None, "lr_scaling": "none"}
    size = options.batch_size
    if options.batch_size_per_device is not None:
        size = options.batch_size_per_device * world
        notes.append(f"batch size {size}: {options.batch_size_per_device} for each process")
    elif world > 1:
        notes.append(f"batch size {size} over {world} processes, about {size / world:.4g} each")
    if size != options.batch_size:
        changes["batch_size"] = size
    if options.lr_scaling != "none":
        factor = world if options.lr_scaling == "linear" else math.sqrt(world)
        changes["lr"] = options.lr * factor
        notes.append(
            f"learning rate {changes['lr']:g}: {options.lr:g} scaled by {factor:g} "
            f"({options.lr_scaling}, {world} processes)"
        )
        if not options.warmup_steps:
            warnings.append(
                f"training.lr_scaling={options.lr_scaling} without training.warmup_steps: large "
                "steps at the beginning can ruin a run; set training.warmup_steps to a few hundred"
            )
        if options.batch_size_per_device is None:
            warnings.append(
                f"training.lr_scaling={options.lr_scaling} although the batch of {size} does not "
                "grow with the processes; set training.batch_size_per_device to make it grow"
            )
    if world > 1 and options.shard_tables == "auto" and processes.device.type != "cpu":
        notes.append("whole tables on each GPU: training.shard_tables=auto shards on CPUs alone")
    if world == 1 and config.distributed.backend != "auto":
        warnings.append("distributed.backend has no effect on one process")
    if slow := slow_precision(options.precision, processes.device):
        warnings.append(slow)
    if options.matmul == "tf32" and not has_tf32(processes.device):
        warnings.append(
            f"training.matmul=tf32 has no effect on {processes.device}: TF32 needs an NVIDIA GPU "
            "of compute capability 8.0 or later"
        )
    if options.cleanup_every is not None and not can_release(processes.device):
        warnings.append("training.cleanup_every has no effect on this system's allocator")
    training = options.model_copy(update=changes)
    # devices: for the record; batch size and learning rate no longer depend on it
    return ResolvedConfig(
        config.model_copy(update={"training": training, "devices": processes.local_world}),
        tuple(notes),
        tuple(warnings),
    )

"""Measurements of finished runs with the options of a planned run, on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low
from typing import Any

from hasten.config_loading.build import load_config
from hasten.errors import HastenError
from hasten.runs.resuming import all_options
from hasten.runs.run_folder import CONFIG, RunFolder

#: of ``environment.json``: what decides about memory and time
_MACHINE = ("versions", "cpu", "memory_bytes", "devices", "threads", "allocator")
#: options that change neither the memory nor the seconds of an epoch
_FREE = frozenset(
    [
        *(f"training.{name}" for name in (
            "epochs", "patience", "max_time", "lr", "lr_scaling", "schedule", "min_lr",
            "warmup_steps", "weight_decay", "betas", "eps", "bad_steps", "batch_size_per_device",
        )),
        "evaluation.every", "evaluation.metrics",
    ]
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Medians over finished runs. peak_memory_bytes: None where no run recorded the device's."""

    runs: list[str]
    peak_memory_bytes: int | None
    epoch_seconds: float
    best_epoch: int


def measured_before(probed: Path, runs: Path, device: str) -> Measured | None:
    """What the finished runs in ``runs`` measured; None if none matches the run ``probed``.

    A run matches if data, options of model, training and evaluation, versions, machine and threads
    are the same. Seed, number of epochs and learning rate may differ.
    """
    identity, by_run = _identity(RunFolder(probed, None)), {}
    for path in sorted(runs.glob("*/metrics.json")):
        with suppress(HastenError, KeyError, TypeError):  # it is damaged, or of an older version
            folder = RunFolder(path.parent, None)
            result = folder.read_json(path.name)
            here = result["effective"]["device"] == device and result["epochs"] > 0
            if here and _identity(folder) == identity:
                by_run[str(folder.path)] = result
    if not by_run:
        return None
    results = list(by_run.values())
    peaks = [peak for result in results if (peak := _peak(result, device)) is not None]
    return Measured(
        list(by_run),
        int(median(peaks)) if peaks else None,
        median(result["seconds"]["train"] / result["epochs"] for result in results),
        median_low(result["best_epoch"] for result in results),
    )


def _identity(folder: RunFolder) -> tuple[Any, ...]:
    """What must be the same in two runs."""
    options = all_options(load_config(folder.path / CONFIG))
    environment = folder.read_json("environment.json")
    return (
        folder.read_json("data.json")["fingerprint"],
        {key: v for key, v in options.items() if _decides(key)},
        {name: environment[name] for name in _MACHINE},
    )


def _decides(key: str) -> bool:
    decides = key == "devices" or key.startswith(("model.", "training.", "evaluation."))
    return decides and key not in _FREE


def _peak(result: Mapping[str, Any], device: str) -> int | None:
    """The peak memory that limits a run: on CUDA only a run with a budget records it."""
    if device.startswith("cuda"):
        plan = result["plan"]
        return None if plan is None else int(plan["measured"]["peak_memory_bytes"])
    return int(result["peak_memory_bytes"])

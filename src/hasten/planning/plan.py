"""The plan of a run: predicted memory by part, seconds and disk, measured by a probe process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hasten.config import RunConfig
from hasten.distributed.launch import launched
from hasten.errors import HastenError, UsageError
from hasten.runs.config_text import config_text


@dataclass(frozen=True)
class Plan:
    """What a run will need.

    settings: the options of training that decide about it. memory: bytes by part while training;
    their sum is ``stages["training"]``. stages: the peak of each stage of a run (start, training,
    evaluation, end), of the device on CUDA and of the process elsewhere; ``peak_memory_bytes`` is
    the largest. seconds: of the start, an epoch of training, an evaluation on the validation set, a
    checkpoint, and in total up to the last epoch. steps: of an epoch, and those that were measured.
    disk_bytes: of the run folder at the end.
    """

    model: str
    data: str
    device: str
    settings: dict[str, Any]
    memory: dict[str, int]
    stages: dict[str, int]
    peak_memory_bytes: int
    seconds: dict[str, float]
    epochs: int
    steps: dict[str, int]
    disk_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_run(config: RunConfig) -> Plan:
    """Probe the run in a new process: a few real steps and a part of an evaluation.

    Raises UsageError for several processes, and what the run itself would raise at its start.
    """
    if config.devices > 1 or launched() is not None:
        raise UsageError(
            "a plan, and a memory budget, is for a run in one process: leave --devices and the "
            "launcher out"
        )
    with tempfile.TemporaryDirectory(prefix="hasten-plan-") as scratch:
        file = Path(scratch) / "config.yaml"
        file.write_text(config_text(config), encoding="utf-8")
        command = [sys.executable, "-m", "hasten.planning", str(file), f"{scratch}/run"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return Plan(**_found(ended))


class OutOfMemoryError(HastenError):
    """A probe ran out of memory: the settings do not fit this machine."""

    code = "memory"


def _found(ended: subprocess.CompletedProcess[str]) -> Mapping[str, Any]:
    """What the probe printed. Raises its error."""
    lines = ended.stdout.splitlines()
    found: dict[str, Any] = json.loads(lines[-1]) if ended.returncode == 0 and lines else {}
    problem = found.get("error")
    if problem is not None:
        kind = OutOfMemoryError if problem["code"] == OutOfMemoryError.code else HastenError
        error = kind(problem["message"])
        error.code, error.exit_code = problem["code"], problem["exit"]
        raise error
    if ended.returncode == -9 or "memory" in ended.stderr.lower()[-2000:]:
        raise OutOfMemoryError(
            "the probe ran out of memory; use --accumulate, --recompute or a smaller model"
        )
    if not found:
        raise HastenError(f"the probe failed: {ended.stderr.strip()[-2000:]}")
    return found

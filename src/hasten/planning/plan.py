"""The plan of a run: predicted memory by part, seconds and disk, measured by a probe process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hasten.config import RunConfig
from hasten.distributed.launch import launched
from hasten.errors import HastenError, Interrupted, UsageError
from hasten.planning.finished_runs import measured_before
from hasten.runs.config_text import config_text
from hasten.training.signals import StopNow, StopSignals


@dataclass(frozen=True)
class Plan:
    """What a run will need.

    settings: the options of training that decide about it. memory: bytes by part while training;
    their sum is ``stages["training"]``. stages: the peak of each stage of a run (start, training,
    evaluation, end), of the device on CUDA and of the process elsewhere; ``peak_memory_bytes`` is
    the largest. seconds: of the start, an epoch of training, an evaluation on the validation set, a
    checkpoint, and in total up to the last epoch. steps: of an epoch, and those that were measured.
    disk_bytes: of the run folder at the end. corrected: None, or ``{"runs": [path], "best_epoch",
    "best_epoch_seconds", "peak_memory_bytes", "epoch_seconds"}``: the finished runs whose peak
    memory and seconds of an epoch replace what the probe predicted, which is kept here; their best
    epoch, which only they can predict, and the seconds until its end.
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
    corrected: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def corrected_by(self, probed: Path, runs: Path) -> Plan:
        """This plan with what finished runs of the same settings measured.

        probed: the run folder of the probe. runs: the folder of run folders.
        """
        measured = measured_before(probed, runs, self.device)
        if measured is None:
            return self
        epoch = self.seconds["epoch"]
        seconds = {**self.seconds, "epoch": measured.epoch_seconds}
        seconds["total"] += self.epochs * (measured.epoch_seconds - epoch)
        each = (seconds["total"] - seconds["start"]) / self.epochs
        before = {
            "best_epoch_seconds": seconds["start"] + measured.best_epoch * each,
            "peak_memory_bytes": self.peak_memory_bytes,
            "epoch_seconds": epoch,
        }
        return replace(
            self,
            peak_memory_bytes=measured.peak_memory_bytes or self.peak_memory_bytes,
            seconds=seconds,
            corrected={"runs": measured.runs, "best_epoch": measured.best_epoch, **before},
        )


def plan_run(config: RunConfig, runs: Path | None = None) -> Plan:
    """Probe the run in a new process: a few real steps and a part of an evaluation.

    runs: a folder of run folders; finished runs of the same settings correct the plan.
    Raises UsageError for several processes, and what the run itself would raise at its start.
    """
    if config.devices > 1 or launched() is not None:
        raise UsageError(
            "a plan, and a memory budget, is for a run in one process: leave --devices and the "
            "launcher out"
        )
    signals = StopSignals()
    try:
        with signals, tempfile.TemporaryDirectory(prefix="hasten-plan-") as scratch:
            file, folder = Path(scratch) / "config.yaml", Path(scratch) / "run"
            file.write_text(config_text(config, given=True), encoding="utf-8")
            command = [sys.executable, "-m", "hasten.planning", str(file), str(folder)]
            with signals.stop_at_once():  # a signal kills the probe
                ended = subprocess.run(  # noqa: S603 - this program itself
                    command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
                )
            plan = Plan(**_found(ended))
            plan = plan if runs is None else plan.corrected_by(folder, runs)
    except StopNow:
        pass
    if signals.received is not None:
        raise Interrupted("interrupted: nothing was planned", signals.received)
    return plan


class OutOfMemoryError(HastenError):
    """A probe ran out of memory: the settings do not fit this machine."""

    code = "memory"


def _found(ended: subprocess.CompletedProcess[str]) -> Mapping[str, Any]:
    """What the probe printed. Raises its error."""
    lines = ended.stdout.splitlines()
    result: dict[str, Any] = json.loads(lines[-1]) if ended.returncode == 0 and lines else {}
    problem = result.get("error")
    if problem is not None:
        kind = OutOfMemoryError if problem["code"] == OutOfMemoryError.code else HastenError
        error = kind(problem["message"])
        error.code, error.exit_code = problem["code"], problem["exit"]
        raise error
    if ended.returncode == -signal.SIGKILL or "std::bad_alloc" in ended.stderr:
        raise OutOfMemoryError(
            "the probe ran out of memory; use --accumulate, --recompute or a smaller model"
        )
    if not result:
        raise HastenError(f"the probe failed: {ended.stderr.strip()[-2000:]}")
    return result

"""Flags to stop or to save, summed over all processes, so that all act after the same step."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from hasten.config import RunConfig
from hasten.distributed.processes import Processes
from hasten.errors import Interrupted
from hasten.training.epoch_report import Callback, EpochReport
from hasten.training.signals import StopSignals, signal_name

#: seconds that an evaluation may go on after the time limit
EVALUATION_GRACE = 10.0
#: seconds of a checkpoint below which one is saved after every epoch, and above it the largest
#: share of the time that saving may take
_CHEAP_SAVE, _SAVING_SHARE = 0.5, 0.05


class ControlFlags(NamedTuple):
    """The stop, time-out and save votes of one process: 0 or 1 each.

    The all-reduce of a step sums them over all processes; a flag is set if its sum is above 0.
    """

    interrupt: float = 0.0
    terminate: float = 0.0
    time_out: float = 0.0
    save: float = 0.0


def epochs_between_saves(every: int | None, save_seconds: float, epoch_seconds: float) -> int:
    """About how many epochs :meth:`RunControl.is_epoch_save_due` leaves between checkpoints."""
    if every is not None or save_seconds < _CHEAP_SAVE:
        return every or 1
    return max(1, math.ceil(save_seconds / _SAVING_SHARE / max(epoch_seconds, 1e-9)))


class RunControl:
    """Collects the control flags of this process, and applies those of all processes.

    Time limits are measured on rank 0 only.
    """

    def __init__(
        self,
        config: RunConfig,
        signals: StopSignals,
        processes: Processes,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.signals, self.processes, self.callbacks = signals, processes, callbacks
        self.max_time, options = config.training.max_time, config.checkpoint
        self.every, self.every_minutes = options.every, options.every_minutes
        #: seconds that the last checkpoint took
        self.save_seconds = 0.0
        #: the signal by which all processes have agreed to stop, or None
        self.stop: int | None = None
        self.start()

    def start(self) -> None:
        """Start both clocks: since the start of the run and since the last checkpoint."""
        self.started = self.saved_at = time.monotonic()

    def saved(self, began: float) -> None:
        """Note a checkpoint that was begun at this time and is now written."""
        self.saved_at = time.monotonic()
        self.save_seconds = self.saved_at - began

    def is_epoch_save_due(self, epoch: int) -> bool:
        """Whether to save after this epoch; identical on all ranks, which must all call it.

        Without ``checkpoint.every``, unless saving would take more than its share of the time.
        """
        if self.every is not None:
            return epoch % self.every == 0

        def decide() -> bool:
            pause = time.monotonic() - self.saved_at
            return self.save_seconds < _CHEAP_SAVE or pause * _SAVING_SHARE >= self.save_seconds

        return bool(self.processes.run_on_rank0(decide, "the time of a checkpoint"))

    def collect(self) -> ControlFlags:
        """The flags of this process now."""
        received, is_rank0 = self.signals.received, self.processes.is_rank0
        now = time.monotonic()
        out_of_time = self.max_time is not None and now - self.started >= self.max_time
        minutes = self.every_minutes
        save_due = minutes is not None and now - self.saved_at >= minutes * 60
        return ControlFlags(
            float(received == signal.SIGINT),
            float(received in (signal.SIGTERM, signal.SIGHUP)),
            float(is_rank0 and out_of_time),
            float(is_rank0 and save_due),
        )

    @property
    def overdue(self) -> bool:
        """Whether the time limit was exceeded by more than an evaluation may; False off rank 0."""
        limit, elapsed = self.max_time, time.monotonic() - self.started
        return limit is not None and self.processes.is_rank0 and elapsed >= limit + EVALUATION_GRACE

    def apply(self, summed: Sequence[float]) -> ControlFlags:
        """Set :attr:`stop` if any process received a signal; return the summed flags."""
        flags = ControlFlags(*summed)
        if self.stop is None and (flags.interrupt > 0 or flags.terminate > 0):
            self.stop = int(signal.SIGTERM if flags.terminate else signal.SIGINT)
            if flags.terminate and self.signals.received == signal.SIGHUP:
                self.stop = int(signal.SIGHUP)
        return flags

    def agreed_after_step(self, summed: Tensor | None, sync: bool) -> ControlFlags:
        """Apply the flags that are in effect after a step; identical on all ranks.

        summed: of all processes, read at synchronizations only; None: without a process group.
        """
        if summed is None:
            return self.apply(self.collect())
        return self.apply(summed.tolist() if sync else ControlFlags())

    def synchronize_stop(self) -> None:
        """Sum the flags over all processes outside of a step, and apply them."""
        self.apply(self.processes.sum_(torch.tensor(self.collect()), "stop requests").tolist())

    def run_callbacks(self, report: EpochReport) -> bool:
        """Call the callbacks on rank 0; return whether one of them asks to stop the run."""
        if not self.callbacks:
            return False

        def call() -> list[bool]:
            return [bool(callback(report)) for callback in self.callbacks]

        return any(self.processes.run_on_rank0(call, "the callbacks"))

    def raise_interrupted(self, step: int, folder: object) -> NoReturn:
        """Raise Interrupted for this process's own signal, without asking the others."""
        self.stop = self.signals.received
        self.raise_if_stopped(step, folder)
        raise AssertionError("no signal was received")

    def raise_if_stopped(self, step: int, folder: object) -> None:
        """Raise Interrupted if a stop was agreed; the checkpoint is already written."""
        if self.stop is not None:
            raise Interrupted(
                f"interrupted by {signal_name(self.stop)} after step {step}; everything is saved: "
                f"go on with  hasten resume {folder}",
                self.stop,
            )

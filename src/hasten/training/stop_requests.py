"""Requests to stop or to save, collected on every process, applied by all after the same step."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from hasten.config import RunConfig
from hasten.distributed.processes import Processes
from hasten.errors import Interrupted
from hasten.training.signals import StopSignals


class Requests(NamedTuple):
    """What a process requests after a step: above 0 if so. Sums over processes are requests too."""

    interrupt: float = 0.0
    terminate: float = 0.0
    time_out: float = 0.0
    save: float = 0.0


class StopRequests:
    """The requests of this process, and the signal by which all processes stop.

    Only the clock of the first process counts.
    """

    def __init__(self, config: RunConfig, signals: StopSignals, processes: Processes) -> None:
        self.signals, self.processes = signals, processes
        self.max_time, self.every_minutes = (
            config.training.max_time,
            config.checkpoint.every_minutes,
        )
        #: the signal by which all processes have agreed to stop, or None
        self.stop: int | None = None
        self.start()

    def start(self) -> None:
        """Start both clocks: of the run and since the last checkpoint."""
        self.started = self.saved = time.monotonic()

    def collect(self) -> Requests:
        """What this process requests now."""
        received, first, now = self.signals.received, self.processes.is_rank0, time.monotonic()
        late = self.max_time is not None and now - self.started >= self.max_time
        due = self.every_minutes is not None and now - self.saved >= self.every_minutes * 60
        return Requests(
            float(received == signal.SIGINT),
            float(received == signal.SIGTERM),
            float(first and late),
            float(first and due),
        )

    def apply(self, summed: Sequence[float]) -> Requests:
        """Record a signal that any process received; what all processes request together."""
        requests = Requests(*summed)
        if self.stop is None and (requests.interrupt > 0 or requests.terminate > 0):
            self.stop = int(signal.SIGTERM if requests.terminate else signal.SIGINT)
        return requests

    def synchronize_stop(self) -> None:
        """Tell all processes of a signal that arrived outside of the steps."""
        self.apply(self.processes.sum_(torch.tensor(self.collect()), "stop requests").tolist())

    def raise_if_stopped(self, step: int, folder: object) -> None:
        """Raise Interrupted if the processes stop; the run is saved."""
        if self.stop is not None:
            raise Interrupted(
                f"interrupted by signal {self.stop} after step {step}; everything is saved: go on "
                f"with  hasten resume {folder}",
                self.stop,
            )

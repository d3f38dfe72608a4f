"""The progress bar of a run, shown on terminals only."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from hasten.console import silence

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_SECONDS_BETWEEN_DRAWS = 0.1
_SHARE_OF_TIME = 0.003


class Progress:
    """Shows epoch, step, loss, throughput, metrics and the remaining time on stderr.

    Disabled by ``quiet`` and when stderr is not a terminal. No thread: the calls draw it, at most
    10 times a second and at most 0.3 % of the time. what: the label of an epoch. limit: the seconds
    from the first epoch after which the run ends.
    """

    def __init__(
        self, total_epochs: int, quiet: bool, what: str = "epoch", limit: float | None = None
    ) -> None:
        self._epochs, self._what, self._limit = total_epochs, what, limit
        #: whether a bar is shown
        self.enabled = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._epoch = self._step = self._steps = 0
        self._done = 0
        self._started = self._next_draw = 0.0
        self._loss: float | None = None
        self._notes: dict[str, float] = {}

    def start_epoch(self, epoch: int, steps: int) -> None:
        """Start an epoch, counted from 1, with this number of steps."""
        self._epoch, self._step, self._steps = epoch, 0, steps
        if self._bar is not None and self._task is not None:
            if not self._started:
                self._started = time.monotonic()
            self._bar.reset(self._task, total=steps)
        self._draw_if_due()

    def advance(self, loss: float | None = None) -> None:
        """Count a step. loss: shown until the next one."""
        self._step += 1
        self._done += 1
        if loss is not None:
            self._loss = loss
        self._draw_if_due()

    def note(self, **metrics: float) -> None:
        """Show these numbers, such as a validation metric, from now on."""
        self._notes.update(metrics)
        self._draw_if_due()

    def __enter__(self) -> Progress:
        if self.enabled:
            from rich.console import Console  # noqa: PLC0415 - only if a bar is shown
            from rich.progress import BarColumn, TextColumn  # noqa: PLC0415
            from rich.progress import Progress as RichProgress  # noqa: PLC0415

            self._bar = RichProgress(
                TextColumn("{task.fields[head]}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[tail]}", markup=False),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, visible=False, head="", tail="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()
            self._bar = None

    def _draw_if_due(self) -> None:
        if self._bar is not None and time.monotonic() >= self._next_draw:
            try:
                self._draw()
            except OSError:  # the terminal is closed
                silence(sys.stderr)

    def _draw(self) -> None:
        assert self._bar is not None
        assert self._task is not None
        start_time = time.monotonic()
        self._bar.update(
            self._task,
            completed=self._step,
            visible=True,
            head=f"{self._what} {self._epoch}/{self._epochs}",
            tail=self._tail(start_time),
        )
        self._bar.refresh()
        end = time.monotonic()
        self._next_draw = end + max(_SECONDS_BETWEEN_DRAWS, (end - start_time) / _SHARE_OF_TIME)

    def _tail(self, now: float) -> str:
        parts = [f"{self._step}/{self._steps}"]
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4f}")
        for name, value in self._notes.items():
            if name == "examples_per_second":
                parts.append(f"{value:,.0f} examples/s")
            else:
                parts.append(f"{name} {value:.4f}")
        if self._done:
            left = (self._epochs - self._epoch + 1) * self._steps - self._step
            seconds = left * (now - self._started) / self._done
            if self._limit is not None:
                seconds = min(seconds, self._limit - (now - self._started))
            parts.append(f"{_duration(seconds)} left")
        return "  ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

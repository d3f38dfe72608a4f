"""What each side's process measures of itself and prints as one line of JSON.

This file needs only the standard library, so that every side's environment can import it.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def peak_memory_bytes() -> int:
    """The largest resident size of this process so far (``VmHWM``)."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Stopwatch:
    """Wall and CPU seconds of this process since it was started."""

    def __init__(self, synchronise: Callable[[], None] | None = None) -> None:
        self._synchronise = synchronise
        self.restart()

    def restart(self) -> None:
        if self._synchronise is not None:
            self._synchronise()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        if self._synchronise is not None:
            self._synchronise()
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def print_report(
    *,
    wall: float,
    cpu: float,
    steps: int,
    steps_per_epoch: int,
    examples_per_epoch: int,
    versions: dict[str, str],
    threads: int,
    memory: int | None = None,
    **more: Any,
) -> None:
    """The one line a side prints: epoch figures, extrapolated from ``steps`` where they differ.

    memory: peak bytes of the process that trained, where that is not this one. ``coverage``, the
    part of an epoch that was timed, follows from the steps unless it is given.
    """
    scale = steps_per_epoch / steps
    record = {
        "epoch_seconds": wall * scale,
        "epoch_cpu_seconds": cpu * scale,
        "steps_measured": steps,
        "steps_per_epoch": steps_per_epoch,
        "coverage": min(1.0, steps / steps_per_epoch),
        "examples_per_epoch": examples_per_epoch,
        "peak_memory_bytes": memory or peak_memory_bytes(),
        "threads": threads,
        "versions": {"python": platform.python_version(), **versions},
        **more,
    }
    print(json.dumps(record), flush=True)

"""The seconds that each part of ``make gpu-check`` may take: less than nine minutes together."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: operations: all of them together; contract: a process of its own
BUDGETS = {
    "operations": 10,
    "losses": 22,
    "triton_kernels": 40,
    "triton_times": 50,
    "captured_steps": 48,
    "model_steps": 20,
    "beside_plain": 30,
    "contract": 145,
    "training": 60,
    "repeated": 10,
    "plan_peaks": 40,
    "group_of_one": 25,
    "collectives": 10,
    "sharded_tables": 25,
}


class TimeSpentError(BaseException):
    """No Exception: a part that records the errors of its rows must not go on after this one."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeSpentError in this block, of the main thread, after so long; None: never."""
    if seconds is None:
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeSpentError(f"stopped after the {seconds:.0f} s that this part may take")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(run: Callable[[], dict[str, Any]], seconds: float | None = None) -> dict[str, Any]:
    """The outcome of a check and the seconds it took, or what it raised."""
    begin = time.perf_counter()
    try:
        with time_limit(seconds):
            outcome = run()
    except (Exception, TimeSpentError) as error:  # noqa: BLE001 - recorded as a failed check
        outcome = {"passed": False, "error": f"{type(error).__name__}: {error}"}
    return {**outcome, "seconds": round(time.perf_counter() - begin, 1)}

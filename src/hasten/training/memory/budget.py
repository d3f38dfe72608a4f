"""Hold a run's memory budget: allocations above it fail on CUDA; elsewhere the peak is checked.

Both are treated as memory that ran out: see :mod:`hasten.training.memory_recovery`.
"""

from __future__ import annotations

import math
import time

import torch

from hasten.training.memory.device import describe_memory, peak_bytes, reset_peak

#: the share of the budget above which a step needs less: memory grows a little between two checks
_SHARE = 0.98
#: settings that save less than this share of the memory do not help
_SAVES = 0.02
#: the time between two checks, as a multiple of the time of a check
_REST = 1000


class MemoryBudget:
    """The budget of a run on a device, in bytes; None: nothing is checked."""

    def __init__(self, budget: int | None, device: torch.device) -> None:
        self.device = device
        #: None: nothing is checked
        self.limit: int | None = None
        #: the peak before the last :meth:`begin`, and the memory that was in use then
        self.before = self.resting = 0
        #: whether the last check failed, and the one before with hardly more memory
        self.exceeded = self.stuck = False
        #: the peak of the last check, if it failed
        self.failed = math.inf
        self._due = 0.0
        self._refuses = budget is not None and device.type == "cuda"
        if budget is not None and self._refuses:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), device)
        elif budget is not None:
            self.limit = int(_SHARE * budget)
            self.begin()

    def begin(self) -> None:
        """Check only what is used from now on; :attr:`before` keeps the peak until now."""
        if self.limit is not None:
            self.before = max(self.before, peak_bytes(self.device))
            reset_peak(self.device)
            self.resting, self._due = peak_bytes(self.device), 0.0

    def check(self) -> None:
        """Raise MemoryError if the peak approaches the budget. Costs a thousandth of the time."""
        start = time.perf_counter()
        if self.limit is None or start < self._due:
            return
        peak = peak_bytes(self.device)
        end = time.perf_counter()
        self._due = end + _REST * (end - start)
        # where the peak cannot be reset, only what exceeds the last one is new
        self.exceeded = peak > max(self.limit, self.resting)
        self.stuck = self.exceeded and peak > (1 - _SAVES) * self.failed
        self.failed = peak if self.exceeded else math.inf
        if self.exceeded:
            raise MemoryError(
                f"the process takes {peak / 2**20:,.0f} MiB, and its budget is "
                f"{self.limit / _SHARE / 2**20:,.0f} MiB"
            )

    def stop(self) -> None:
        """Check no longer, and allow the device all of its memory."""
        self.limit, self.exceeded, self.stuck = None, False, False
        if self._refuses:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def describe_usage(self) -> str:
        """The peak of the whole run, as text."""
        return describe_memory(self.device, self.before)

    def has_room(self, size: int) -> bool:
        """Whether the budget has room for so many bytes beside the memory in use."""
        return self.limit is None or self.resting + size <= self.limit

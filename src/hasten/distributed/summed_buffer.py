"""Flat numbers of a process that are summed over all of them, through memory where they share it.

On one machine with CPU devices every process has a row of :mod:`.shared_memory`. A
sum then moves what a sum must: each process adds up its part of all rows and writes the result into
all of them. Semaphores in the same memory say when everyone is there: before, and after. Where
memory cannot be shared (macOS, several machines) gloo sends everything through sockets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.distributed.processes import Processes
from hasten.distributed.shared_memory import SharedRows, share

#: numbers added up at once, so that their sum is still in cache when it is written to all rows
_PIECE = 1 << 16


class SummedBuffer:
    """``values``: [count] numbers of this process, to be written at will between two sums.

    All processes must make it, and sum it, alike and in the same order. Addition is in the order of
    ranks, and all hold the same bytes afterwards.
    """

    def __init__(
        self, processes: Processes, count: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.processes = processes
        self.memory: SharedRows | None = None
        if device.type == "cpu":
            self.memory = share(processes, processes.world, count, dtype)
        if self.memory is not None:
            self.values = self.memory.rows[processes.rank]
        else:
            self.values = torch.empty(count, dtype=dtype, device=device)

    def sum_(self, count: int, what: str) -> None:
        """Replace the first ``count`` values by their sums over all processes."""
        if self.memory is None:
            self.processes.sum_(self.values[:count], what)
            return
        rank, world = self.processes.rank, self.processes.world
        begin, end = count * rank // world, count * (rank + 1) // world
        self.processes.meet(self.memory.semaphores, what)
        for start in range(begin, end, _PIECE):
            total, parts = _added(self.memory, start, min(start + _PIECE, end))
            for part in parts:
                part.copy_(total)
        self.processes.meet(self.memory.semaphores, what)


def _added(memory: SharedRows, start: int, stop: int) -> tuple[Tensor, list[Tensor]]:
    """The sum of a piece of all rows, and these pieces."""
    parts = [row[start:stop] for row in memory.rows]
    total = parts[0] + parts[1]
    for other in parts[2:]:
        total += other
    return total, parts

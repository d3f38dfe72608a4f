"""Flat numbers of a process that are summed over all of them, through memory where they share it.

On one machine with CPU devices every process has a slot of one mapped file without a name (Linux's
memfd: nothing is left of it however the processes end, and no /dev/shm is too small for it). A sum
then moves what a sum must: each process adds up its part of all slots and writes the result into
all of them. Semaphores in the same memory say when everyone is there: before, and after. Where
memory cannot be shared (macOS, several machines) gloo sends everything through sockets.
"""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path

import torch
from torch import Tensor

from hasten.training.distributed import Processes
from hasten.training.semaphores import Semaphores, room

#: numbers added up at once, so that their sum is still in cache when it is written to all slots
_PIECE = 1 << 16
_PAGE = 4096
#: bytes of the word at the beginning by which the file is known; semaphores follow
_TOKEN = 64


class SummedBuffer:
    """``values``: [count] numbers of this process, to be written at will between two sums.

    All processes must make it, and sum it, alike and in the same order. Addition is in the order of
    ranks, and all hold the same bytes afterwards.
    """

    def __init__(
        self, processes: Processes, count: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.processes = processes
        self.slots: list[Tensor] = []
        self._semaphores: Semaphores | None = None
        if device.type == "cpu":
            self.slots, self._semaphores = _shared(processes, count, dtype)
        if self.slots:
            self.values = self.slots[processes.rank]
        else:
            self.values = torch.empty(count, dtype=dtype, device=device)

    def sum_(self, count: int, what: str) -> None:
        """Replace the first ``count`` values by their sums over all processes."""
        if self._semaphores is None:
            self.processes.sum_(self.values[:count], what)
            return
        rank, world = self.processes.rank, self.processes.world
        begin, end = count * rank // world, count * (rank + 1) // world
        self.processes.meet(self._semaphores, what)
        for start in range(begin, end, _PIECE):
            first, *others = [slot[start : min(start + _PIECE, end)] for slot in self.slots]
            total = first + others[0]
            for other in others[1:]:
                total += other
            for part in (first, *others):
                part.copy_(total)
        self.processes.meet(self._semaphores, what)


def _shared(
    processes: Processes, count: int, dtype: torch.dtype
) -> tuple[list[Tensor], Semaphores | None]:
    """The slots of all processes, each [count], and their semaphores; or neither.

    Neither where they cannot share memory.
    """
    if not processes.one_machine or processes.world < 2:
        return [], None
    head, size = _pages(_TOKEN + room(processes.world)), _pages(count * dtype.itemsize)
    handle, token = None, secrets.token_hex(_TOKEN // 2)
    if processes.first:
        handle = _reserve(head + size * processes.world, token)
    place = processes.from_first(
        lambda: None if handle is None else [f"/proc/{os.getpid()}/fd/{handle}", token]
    )
    mapped = None if place is None else _map(Path(place[0]), place[1])
    semaphores = None
    if mapped is not None:
        semaphores = Semaphores(mapped, _TOKEN, processes.rank, processes.world)
        if processes.first:
            semaphores.prepare()
    everybody = processes.gather([semaphores is not None, os.getpid()], "sharing memory")
    if handle is not None:
        os.close(handle)
    if mapped is None or semaphores is None or not all(ready for ready, _ in everybody):
        return [], None
    semaphores.processes = [number for _, number in everybody]
    numbers = torch.frombuffer(mapped, dtype=dtype, offset=head)
    whole = numbers.view(processes.world, size // dtype.itemsize)
    return [slot[:count] for slot in whole.unbind()], semaphores


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _reserve(size: int, token: str) -> int | None:
    """A file without a name whose memory is really there; None where that cannot be had."""
    if not hasattr(os, "memfd_create"):
        return None
    handle = None
    try:
        handle = os.memfd_create("hasten-sums")
        os.posix_fallocate(handle, 0, size)
        os.write(handle, token.encode())
    except OSError:  # no memory to spare, or the system does not let us
        if handle is not None:
            os.close(handle)
        return None
    return handle


def _map(path: Path, token: str) -> mmap.mmap | None:
    """The first process's file, which says ``token``; None where this process cannot have it.

    In a container of its own the same path is another file, or none.
    """
    try:
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
    except OSError:
        return None
    return mapped if mapped[: len(token)] == token.encode() else None

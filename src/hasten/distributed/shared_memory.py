"""Numbers that all processes of one machine see: rows of one mapped file without a name.

Linux's memfd: nothing is left of it however the processes end, and no /dev/shm is too small for it.
"""

from __future__ import annotations

import mmap
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hasten.distributed.processes import Processes
from hasten.distributed.semaphores import Semaphores, available, room

_PAGE = 4096
#: bytes of the word at the beginning by which the file is known; semaphores follow
_TOKEN = 64


@dataclass(frozen=True)
class SharedRows:
    """rows: each [count], the same memory in all processes; semaphores: to meet by."""

    rows: list[Tensor]
    semaphores: Semaphores


def share(processes: Processes, rows: int, count: int, dtype: torch.dtype) -> SharedRows | None:
    """So many rows of so many zeros, or None where the processes cannot share memory.

    Called by all of them, alike; all get rows, or none does.
    """
    if not processes.one_machine or processes.world < 2:
        return None
    head, size = _pages(_TOKEN + room(processes.world)), _pages(count * dtype.itemsize)
    handle, token = None, secrets.token_hex(_TOKEN // 2)
    if processes.first:
        handle = _reserve(head + size * rows, token)
    place = processes.from_first(
        lambda: None if handle is None else [f"/proc/{os.getpid()}/fd/{handle}", token]
    )
    mapped = None if place is None else _map(Path(place[0]), place[1])
    semaphores = None
    if mapped is not None and available():
        semaphores = Semaphores(mapped, _TOKEN, processes.rank, processes.world)
        if processes.first:
            semaphores.prepare()
    everybody = processes.gather([semaphores is not None, os.getpid()], "sharing memory")
    if handle is not None:
        os.close(handle)
    if mapped is None or semaphores is None or not all(ready for ready, _ in everybody):
        return None
    semaphores.processes = [number for _, number in everybody]
    numbers = torch.frombuffer(mapped, dtype=dtype, offset=head)
    whole = numbers.view(rows, size // dtype.itemsize)
    return SharedRows([row[:count] for row in whole.unbind()], semaphores)


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

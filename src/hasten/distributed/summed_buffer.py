"""A flat buffer that is summed over all processes, in shared memory where that is possible.

CPU processes on one machine map one file without a name (Linux's memfd: nothing is left behind
however they end, and the size of /dev/shm does not matter) with a row for each process. Each
process sums its part of all rows and writes the result to all of them; semaphores in the same
memory synchronize them before and after. Elsewhere (macOS, GPUs, several machines)
torch.distributed's all-reduce sums the buffer.
"""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path

import torch
from torch import Tensor

from hasten.distributed.processes import Processes
from hasten.distributed.semaphores import Semaphores, available, size_of

_PAGE = 4096
#: bytes of the token at the beginning that identifies the file; semaphores follow
_TOKEN = 64
#: elements summed at once, so that the sum is still in cache when it is written to all rows
_PIECE = 1 << 16


class SummedBuffer:
    """``values``: [count] numbers of this process, free to be written between two sums.

    All processes create and sum it in the same order. Addition is in the order of ranks, and all
    processes hold the same bytes afterwards.
    """

    def __init__(
        self, processes: Processes, count: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.processes = processes
        self.values: Tensor
        self._rows: list[Tensor] = []
        self._semaphores: Semaphores | None = None
        if device.type == "cpu" and processes.one_machine and processes.world > 1:
            self._share(count, dtype)
        if self._rows:
            self.values = self._rows[processes.rank]
        else:
            self.values = torch.empty(count, dtype=dtype, device=device)

    @property
    def shared(self) -> bool:
        """Whether the buffer is in shared memory."""
        return self._semaphores is not None

    def sum_(self, count: int, what: str) -> None:
        """Replace the first ``count`` values by their sums over all processes."""
        if self._semaphores is None:
            self.processes.sum_(self.values[:count], what)
            return
        rank, world = self.processes.rank, self.processes.world
        begin, end = count * rank // world, count * (rank + 1) // world
        self.processes.meet(self._semaphores, what)
        for start in range(begin, end, _PIECE):
            parts = [row[start : min(start + _PIECE, end)] for row in self._rows]
            total = parts[0] + parts[1]
            for other in parts[2:]:
                total += other
            for part in parts:
                part.copy_(total)
        self.processes.meet(self._semaphores, what)

    def _share(self, count: int, dtype: torch.dtype) -> None:
        """Map a row for every process; if one of them cannot, none does."""
        processes, size = self.processes, _pages(count * dtype.itemsize)
        head = _pages(_TOKEN + size_of(processes.world))
        handle, token = None, secrets.token_hex(_TOKEN // 2)
        if processes.is_rank0:
            handle = _reserve(head + size * processes.world, token)
        file_and_token = processes.run_on_rank0(
            lambda: None if handle is None else [f"/proc/{os.getpid()}/fd/{handle}", token]
        )
        mapped = (
            None if file_and_token is None else _map(Path(file_and_token[0]), file_and_token[1])
        )
        semaphores = None
        if mapped is not None and available():
            semaphores = Semaphores(mapped, _TOKEN, processes.rank, processes.world)
            if processes.is_rank0:
                semaphores.prepare()
        everybody = processes.gather([semaphores is not None, os.getpid()], "sharing memory")
        if handle is not None:
            os.close(handle)
        if mapped is None or semaphores is None or not all(ready for ready, _ in everybody):
            return
        semaphores.processes = [number for _, number in everybody]
        numbers = torch.frombuffer(mapped, dtype=dtype, offset=head)
        rows = numbers.view(processes.world, size // dtype.itemsize)
        self._rows, self._semaphores = [row[:count] for row in rows.unbind()], semaphores


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _reserve(size: int, token: str) -> int | None:
    """A file without a name whose memory is reserved; None if that fails."""
    if not hasattr(os, "memfd_create"):
        return None
    handle = None
    try:
        handle = os.memfd_create("hasten-sums")
        os.posix_fallocate(handle, 0, size)
        os.write(handle, token.encode())
    except OSError:  # not enough memory, or not permitted
        if handle is not None:
            os.close(handle)
        return None
    return handle


def _map(path: Path, token: str) -> mmap.mmap | None:
    """The file of rank 0, which begins with ``token``; None if this process cannot map it.

    In another container the same path is another file, or none.
    """
    try:
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
    except OSError:
        return None
    return mapped if mapped[: len(token)] == token.encode() else None

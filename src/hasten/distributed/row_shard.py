"""The shard of a table that a process holds, and the exchange of rows between processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from hasten.distributed.processes import Processes


@dataclass(frozen=True)
class RowShard:
    """The rows ``first`` ... ``stop - 1`` of a table: consecutive, about as many on each process.

    total: the rows of the whole table. Ids are of the whole table, distinct, ascending and equal on
    all processes.
    """

    processes: Processes
    total: int

    @property
    def bounds(self) -> list[int]:
        """[P + 1] the first row of each process, and ``total``."""
        world = self.processes.world
        return [rank * self.total // world for rank in range(world + 1)]

    @property
    def first(self) -> int:
        """The first row of this process."""
        return self.bounds[self.processes.rank]

    @property
    def stop(self) -> int:
        """The row after the last of this process."""
        return self.bounds[self.processes.rank + 1]

    def own(self, ids: Tensor) -> slice:
        """Which of the ids this process holds."""
        return slice(*torch.searchsorted(ids, torch.tensor([self.first, self.stop])).tolist())

    def exchange(self, ids: Tensor, own: Tensor) -> Tensor:
        """[S, D] the rows of the ids; own: those that this process holds, in their order.

        A collective: each process sends its rows to all others.
        """
        found = own.new_empty(len(ids), *own.shape[1:])
        found[self.own(ids)] = own
        starts = torch.searchsorted(ids, torch.tensor(self.bounds)).tolist()
        for rank, (start, stop) in enumerate(pairwise(starts)):
            if stop > start:
                self.processes.broadcast_(found[start:stop], "the rows of a step", source=rank)
        return found

    def pieces(self, own: Tensor) -> Iterator[Tensor]:
        """The rows of the whole table on rank 0, process by process; own: those of this process.

        A collective: the other processes must ask for all pieces too.
        """
        for rank, (start, stop) in enumerate(pairwise(self.bounds)):
            mine = rank == self.processes.rank
            piece = own.contiguous() if mine else own.new_empty(stop - start, *own.shape[1:])
            if rank > 0:
                self.processes.broadcast_(piece, "the rows of a checkpoint", source=rank)
            yield piece

    def scatter(self, whole: Tensor) -> Tensor:
        """The rows of this process, of the tensor that rank 0 has; the others' is empty memory.

        A collective.
        """
        own = whole[self.first : self.stop].clone() if self.processes.is_rank0 else whole[:0]
        for rank, (start, stop) in list(enumerate(pairwise(self.bounds)))[1:]:
            piece = (
                whole[start:stop].contiguous()
                if self.processes.is_rank0
                else (whole.new_empty(stop - start, *whole.shape[1:]))
            )
            self.processes.broadcast_(piece, "the rows of a checkpoint")
            own = piece if rank == self.processes.rank else own
        return own

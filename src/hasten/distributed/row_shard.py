"""The shard of a table that a process holds, and rows that all processes read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from hasten.distributed.processes import Processes
from hasten.distributed.row_requests import RowRequests
from hasten.runs.tensor_file import StoredRows

#: rows of a checkpoint that are sent at a time: few, because the allocator does not always use the
#: memory of an aligned buffer again
_PIECE_BYTES = 1 << 21


@dataclass(frozen=True)
class RowShard:
    """The rows ``first`` ... ``stop - 1`` of a table: consecutive, about as many on each process.

    total: the rows of the whole table. cuts: the bounds of the parts; (): equal parts. Ids are of
    the whole table, distinct, ascending and, but for :meth:`requests`, equal on all processes.
    """

    processes: Processes
    total: int
    cuts: tuple[int, ...] = ()

    @property
    def bounds(self) -> list[int]:
        """[P + 1] the first row of each process, and ``total``."""
        if self.cuts:
            return list(self.cuts)
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

    @property
    def largest(self) -> int:
        """The most rows that a process holds."""
        return max(self._lengths)

    @property
    def _lengths(self) -> list[int]:
        """[P] the number of rows of each process."""
        return [stop - first for first, stop in pairwise(self.bounds)]

    def of_rows(self, total: int, cuts: tuple[int, ...] = ()) -> RowShard:
        """The shard of another table of ``total`` rows, of the same processes."""
        return RowShard(self.processes, total, cuts)

    def held(self, ids: Tensor) -> tuple[slice, Tensor]:
        """Which of the ids this process holds, and the numbers of their rows among its rows."""
        own = slice(*torch.searchsorted(ids, ids.new_tensor([self.first, self.stop])).tolist())
        return own, ids[own] - self.first

    def requests(self, *others: RowShard) -> RowRequests:
        """How the processes ask for rows of this table, and of others numbered after it."""
        return RowRequests(self.processes, [each.bounds for each in (self, *others)])

    def places(self, ids: Tensor) -> list[int]:
        """[P + 1] where the ids of each process begin, and their number."""
        places: list[int] = torch.searchsorted(ids, ids.new_tensor(self.bounds)).tolist()
        return places

    def exchange(self, starts: list[int], own_rows: Tensor) -> Tensor:
        """[S, D] the rows of ids, equal on all processes; own: those that this one holds.

        starts: their :meth:`places`. A collective: each process sends its rows to all others.
        """
        rank = self.processes.rank
        rows = own_rows.new_empty(starts[-1], *own_rows.shape[1:])
        rows[starts[rank] : starts[rank + 1]] = own_rows
        for rank, (start, stop) in enumerate(pairwise(starts)):
            if stop > start:
                self.processes.broadcast_(rows[start:stop], "the rows of a step", rank)
        return rows

    def gather(self, own_rows: Tensor) -> Tensor:
        """[total, ...] the rows of all processes, from those of each. A collective."""
        of_all = RowsOfAll(self.processes, self._lengths)
        return of_all.gather(own_rows, "the rows of a product")

    def sum_(self, values: Tensor) -> Tensor:
        """The sum over processes, in place. A collective."""
        return self.processes.sum_(values, "the vectors of a step")

    def rows_by_rank(
        self, own_rows: Tensor, stop: int | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """The first row of each process and its rows, in turn; stop: no rows from there on.

        A collective: each process sends its rows to all others.
        """
        end = self.total if stop is None else stop
        for rank, (first, last) in enumerate(pairwise(self.bounds)):
            if (count := min(last, end) - first) > 0:
                held = rank == self.processes.rank
                rows = own_rows[:count] if held else own_rows.new_empty(count, *own_rows.shape[1:])
                yield first, self.processes.broadcast_(rows.contiguous(), "rows in turn", rank)

    def log_sum_exp(self, values: Tensor) -> Tensor:
        """[T] the logarithm of the sum over processes of the exponentials of [T]. A collective."""
        largest = self.processes.max_(values.clone(), "the largest scores of a step")
        sums = (values - largest).exp_()
        return self.processes.sum_(sums, "the sums of a step").log_().add_(largest)

    def of_all(self, value: Tensor) -> Tensor:
        """[P] the scalars of all processes. A collective."""
        values = value.new_zeros(self.processes.world)
        values[self.processes.rank] = value
        return self.processes.sum_(values, "the norms of a step")

    def together(self, *counts: int) -> list[RowsOfAll]:
        """How tensors with these lengths follow each other over processes. A collective."""
        lengths = torch.zeros(self.processes.world, len(counts), dtype=torch.int64)
        lengths[self.processes.rank] = torch.tensor(counts)
        self.processes.sum_(lengths, "the queries of a step")
        return [RowsOfAll(self.processes, each.tolist()) for each in lengths.T]

    def pieces(self, own_rows: Tensor) -> Iterator[Tensor]:
        """The rows of the whole table on rank 0, in pieces. own_rows: those of this process.

        A piece is valid until the next. A collective: the other processes must ask for all too.
        """
        own_rows = own_rows.contiguous()
        for rank, piece in self._pieces(own_rows):
            if rank > 0:
                self.processes.broadcast_(piece, "the rows of a checkpoint", rank)
            yield piece

    def scatter(self, stored: StoredRows | None, like: Tensor) -> Tensor:
        """The rows of this process, of a tensor in a file that rank 0 reads a piece at a time.

        stored: None on the other ranks. like: of no rows, of their shape and type. A collective.
        """
        shard, start = like.new_empty(self.stop - self.first, *like.shape[1:]), 0
        for rank, piece in self._pieces(shard):
            if stored is not None:
                stored.read(start, piece)
            if rank > 0:
                self.processes.broadcast_(piece, "the rows of a checkpoint")
            start += len(piece)
        return shard

    def _pieces(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The pieces of the whole table in order, of about :data:`_PIECE_BYTES`, and their ranks.

        Those of this process are views of its rows, the others of one buffer.
        """
        step = max(1, _PIECE_BYTES // max(1, own.new_empty(1, *own.shape[1:]).nbytes))
        buffer = own.new_empty(min(step, self.largest), *own.shape[1:])
        for rank, (first, last) in enumerate(pairwise(self.bounds)):
            for start in range(first, last, step):
                count = min(step, last - start)
                mine = own[start - first : start - first + count]
                yield rank, mine if rank == self.processes.rank else buffer[:count]


@dataclass(frozen=True)
class RowsOfAll:
    """Tensors of all processes, one after the other in the order of ranks.

    lengths: of the tensor of each process, in rows.
    """

    processes: Processes
    lengths: list[int]

    @property
    def bounds(self) -> list[int]:
        """[P + 1] the place of the first row of each process, and the number of all rows."""
        return [0, *accumulate(self.lengths)]

    @property
    def first(self) -> int:
        """The place of the first row of this process."""
        return self.bounds[self.processes.rank]

    @property
    def total(self) -> int:
        """The number of rows of all processes."""
        return sum(self.lengths)

    def gather(self, own: Tensor, what: str = "the queries of a step") -> Tensor:
        """[total, ...] the rows of all processes, from those of each. A collective."""
        gathered = own.new_empty(self.total, *own.shape[1:])
        gathered[self.first : self.first + len(own)] = own
        for rank, (start, stop) in enumerate(pairwise(self.bounds)):
            if stop > start:
                part = gathered[start:stop]
                self.processes.broadcast_(part, what, rank)
        return gathered

    def sum_back(self, values: Tensor) -> Tensor:
        """The rows of this process of the sum over processes of [total, ...]. A collective."""
        own = values[:0]
        for rank, (start, stop) in enumerate(pairwise(self.bounds)):
            if stop > start:
                part = values[start:stop].clone()
                self.processes.sum_at_(part, "the gradients of the queries", rank)
                own = part if rank == self.processes.rank else own
        return own

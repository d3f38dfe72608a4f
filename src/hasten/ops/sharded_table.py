"""An embedding table whose rows are sharded over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hasten.ops.initial_rows import xavier_normal_rows
from hasten.ops.table import EmbeddingTable, FixedTable

#: the shard of a table with this many rows, while a model with sharded tables is built
_shard_of: ContextVar[Callable[[int], Shard] | None] = ContextVar("shard_of", default=None)


class Requested(Protocol):
    """The rows that a process reads in a step, and those of its rows that processes read."""

    @property
    def rows(self) -> Tensor:
        """int64 [U] the distinct numbers of the latter among the rows of this process."""
        ...

    def fetch(self, held: Tensor) -> Tensor:
        """[S, D] the rows that this process reads. held: [U, D], its ``rows``. A collective."""
        ...

    def sum_back(self, values: Tensor) -> Tensor:
        """[U, D] the sum over processes for each of ``rows``, of [S, D] of each. A collective."""
        ...


class Shard(Protocol):
    """The rows first ... stop - 1 of a table of ``total`` rows, which this process holds.

    Ids below are of the whole table: distinct, ascending and, but for :meth:`requests`, equal on
    all processes.
    """

    @property
    def bounds(self) -> list[int]:
        """[P + 1] the first row of each process, and ``total``."""
        ...

    @property
    def first(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def total(self) -> int: ...

    @property
    def largest(self) -> int:
        """The most rows that a process holds."""
        ...

    def requests(self, *others: Any) -> Callable[[Tensor], Requested]:
        """A function that asks the holders for rows, int64 [S] of this process. A collective.

        It keeps how long its messages are, so each optimizer has one. others: shards
        of further tables, whose rows are numbered after those of this one.
        """
        ...

    def held(self, ids: Tensor) -> tuple[slice, Tensor]:
        """Which of the ids this process holds, and the numbers of their rows among its rows."""
        ...

    def places(self, ids: Tensor) -> list[int]:
        """[P + 1] where the ids of each process begin, and their number."""
        ...

    def exchange(self, starts: list[int], own_rows: Tensor) -> Tensor:
        """[S, D] the rows of ids, from those that each process holds. A collective.

        starts: the :meth:`places` of the ids.
        """
        ...

    def of_rows(self, total: int, cuts: tuple[int, ...] = ()) -> Shard:
        """The shard of another table of ``total`` rows; cuts: its bounds; (): equal parts."""
        ...

    def gather(self, own_rows: Tensor) -> Tensor:
        """[total, ...] the rows of all processes, from those of each. A collective."""
        ...

    def sum_(self, values: Tensor) -> Tensor:
        """The sum over processes, in place. A collective."""
        ...

    def rows_by_rank(
        self, own_rows: Tensor, stop: int | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """The first row of each process and its rows, in turn; stop: no rows from there on.

        A collective: each process sends its rows to all others.
        """
        ...

    def log_sum_exp(self, values: Tensor) -> Tensor:
        """[T] the logarithm of the sum over processes of the exponentials of [T]. A collective."""
        ...

    def of_all(self, value: Tensor) -> Tensor:
        """[P] the scalars of all processes. A collective."""
        ...

    def together(self, *counts: int) -> Sequence[Concatenation]:
        """How tensors with these lengths follow each other over processes. A collective."""
        ...


@dataclass(frozen=True)
class JoinedRows:
    """The rows of several tables that this process holds, numbered one table after the other."""

    tables: Sequence[Shard]

    def requests(self) -> Callable[[Tensor], Requested]:
        """As :meth:`Shard.requests`."""
        first, *others = self.tables
        return first.requests(*others)

    def of_all(self, value: Tensor) -> Tensor:
        """As :meth:`Shard.of_all`."""
        return self.tables[0].of_all(value)


class Concatenation(Protocol):
    """Tensors of all processes, one after the other in the order of ranks; lengths can differ."""

    @property
    def first(self) -> int:
        """The place of the first row of this process."""
        ...

    @property
    def total(self) -> int: ...

    def gather(self, own: Tensor) -> Tensor:
        """[total, ...] the rows of all processes, from those of each. A collective."""
        ...

    def sum_back(self, values: Tensor) -> Tensor:
        """The rows of this process of the sum over processes of [total, ...]. A collective."""
        ...


@dataclass(frozen=True)
class ShardedFixedTable:
    """Computed rows that are sharded. weight: [R, D], those of this process.

    ``rows`` is a collective, which must be called with the same ids on all processes, and has no
    gradient. ``block`` returns rows of the shard only.
    """

    weight: Tensor
    shard: Shard

    def rows(self, ids: Tensor) -> Tensor:
        assert not torch.is_grad_enabled(), "a gradient needs the rows of reading()"
        distinct, places = torch.unique(ids, return_inverse=True)
        _, local_rows = self.shard.held(distinct)
        own = self.weight.index_select(0, local_rows)
        read = self.shard.exchange(self.shard.places(distinct), own)
        return FixedTable(read).rows(places)

    def block(self, start: int, stop: int) -> Tensor:
        if start == stop:  # no rows, for their type and device
            return self.weight[:0]
        first = self.shard.first
        assert first <= start <= stop <= self.shard.stop, "rows that another process holds"
        return self.weight[start - first : stop - first]

    def __len__(self) -> int:
        return self.shard.total


def first_rows(rows: Tensor, shard: Shard, count: int) -> ShardedFixedTable:
    """The first ``count`` rows of a sharded table, divided anew into equal parts. A collective.

    rows: those of this process.
    """
    target = shard.of_rows(count)
    moved = rows.new_empty(target.stop - target.first, *rows.shape[1:])
    for start, part in shard.rows_by_rank(rows, count):
        low, high = max(start, target.first), min(start + len(part), target.stop)
        if low < high:
            moved[low - target.first : high - target.first] = part[low - start : high - start]
    return ShardedFixedTable(moved, target)


class ShardedTable(EmbeddingTable):
    """A table whose ``weight`` [R, D] holds the rows of a shard.

    In training it is read through :meth:`reading`, elsewhere as a :class:`ShardedFixedTable`.
    """

    shard: Shard
    #: vectors [R] of the same rows
    beside: tuple[nn.Parameter, ...] = ()

    def __init__(self, count: int, width: int, shard: Shard) -> None:
        rows = xavier_normal_rows(count, width, shard.first, shard.stop)
        super().__init__(count, width, rows)
        self.shard = shard

    @classmethod
    def shard_weight(cls, table: EmbeddingTable, shard: Shard) -> None:
        """Make a whole table one that holds the rows of a shard.

        In place: phases, optimizers and the model hold the table and its parameter.
        """
        table.weight.data = table.weight.data[shard.first : shard.stop].clone()
        table.__class__ = cls
        assert isinstance(table, cls)
        table.shard = shard

    def rows(self, ids: Tensor) -> Tensor:
        if self._read is not None:
            return super().rows(ids)
        return ShardedFixedTable(self.weight, self.shard).rows(ids)

    def block(self, start: int, stop: int) -> Tensor:
        return ShardedFixedTable(self.weight, self.shard).block(start, stop)

    def __len__(self) -> int:
        return self.shard.total


@contextmanager
def sharding(shard_of: Callable[[int], Shard]) -> Iterator[None]:
    """While the context is open, :func:`shardable_table` makes only the rows of a shard."""
    before = _shard_of.set(shard_of)
    try:
        yield
    finally:
        _shard_of.reset(before)


def shardable_table(count: int, width: int) -> EmbeddingTable:
    """A table of candidates or users, which a run can shard; its values do not depend on that."""
    shard_of = _shard_of.get()
    if shard_of is None:
        return EmbeddingTable(count, width)
    return ShardedTable(count, width, shard_of(count))


def sharded_weights(model: nn.Module) -> dict[str, Shard]:
    """The shard of each weight that is sharded, by its name."""
    tables = [module for module in model.modules() if isinstance(module, ShardedTable)]
    shards = {weight: each.shard for each in tables for weight in (each.weight, *each.beside)}
    named = model.state_dict(keep_vars=True).items()
    return {name: shards[weight] for name, weight in named if weight in shards}

"""An embedding table whose rows are divided over processes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hasten.ops.table import EmbeddingTable, FixedTable


class Shard(Protocol):
    """The rows first ... stop - 1 of a table of ``total`` rows, which this process holds.

    Ids below are of the whole table: distinct, ascending and equal on all processes.
    """

    @property
    def first(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def total(self) -> int: ...

    def own(self, ids: Tensor) -> slice:
        """Which of the ids this process holds."""
        ...

    def exchange(self, ids: Tensor, own: Tensor) -> Tensor:
        """[S, D] the rows of the ids, from those that each process holds. A collective."""
        ...


class ShardedTable(EmbeddingTable):
    """A table whose ``weight`` [R, D] holds the rows of a shard.

    In training it is read through :meth:`reading`. Elsewhere ``rows`` is a collective, which must
    be called with the same ids on all processes, and has no gradient. ``block`` returns rows of the
    shard only.
    """

    shard: Shard

    @classmethod
    def divide(cls, table: EmbeddingTable, shard: Shard) -> None:
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
        assert not torch.is_grad_enabled(), "a gradient needs the rows of reading()"
        distinct, places = torch.unique(ids, return_inverse=True)
        held = distinct[self.shard.own(distinct)] - self.shard.first
        read = self.shard.exchange(distinct, self.weight.index_select(0, held))
        return FixedTable(read).rows(places)

    def block(self, start: int, stop: int) -> Tensor:
        if start == stop:  # no rows, for their type and device
            return self.weight[:0]
        first = self.shard.first
        assert first <= start <= stop <= self.shard.stop, "rows that another process holds"
        return self.weight[start - first : stop - first]

    def __len__(self) -> int:
        return self.shard.total

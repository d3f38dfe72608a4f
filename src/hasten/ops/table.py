"""The interface of embedding tables: ``rows`` and ``block``.

Models, losses and ranking read tables only through it, so a table that is sharded over processes
can replace :class:`EmbeddingTable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Table(Protocol):
    """[N, D] embeddings, whole or in shards."""

    def rows(self, ids: Tensor) -> Tensor:
        """[..., D] the given rows (int64 ids)."""
        ...

    def block(self, start: int, stop: int) -> Tensor:
        """[stop-start, D] consecutive rows."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class FixedTable:
    """Computed rows, such as the node embeddings of a whole graph. weight: [N, D]."""

    weight: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        return self.weight.index_select(0, ids.reshape(-1)).view(*ids.shape, self.weight.shape[1])

    def block(self, start: int, stop: int) -> Tensor:
        return _block(self.weight, start, stop)

    def __len__(self) -> int:
        return len(self.weight)


def _block(weight: Tensor, start: int, stop: int) -> Tensor:
    # no slice of the whole table: its backward pass first fills a gradient with zeros
    return weight if (start, stop) == (0, len(weight)) else weight[start:stop]


def gathered_rows(weight: Tensor, ids: Tensor) -> Tensor:
    """[..., D] the given rows (int64 ids) of [N, D].

    On a GPU the backward pass sums in the same order in each run; that of index_select does not.
    """
    if weight.device.type == "cpu":
        # its backward pass is one index_add, here 3-5 times faster than that of embedding
        return weight.index_select(0, ids.reshape(-1)).view(*ids.shape, weight.shape[1])
    return F.embedding(ids, weight)


class EmbeddingTable(nn.Module):
    """A table as one parameter ``weight`` [N, D], with Xavier-normal initialization.

    weight: its values; None: drawn.
    """

    def __init__(self, count: int, width: int, weight: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width) if weight is None else weight)
        if weight is None:
            nn.init.xavier_normal_(self.weight)
        self._read: tuple[Tensor, Tensor] | None = None
        self._places = torch.empty(0, dtype=torch.int64)

    def rows(self, ids: Tensor) -> Tensor:
        if self._read is not None:
            table, places = self.within(ids)
            return table.rows(places)
        return gathered_rows(self.weight, ids)

    def block(self, start: int, stop: int) -> Tensor:
        return _block(self.weight, start, stop)

    @contextmanager
    def reading(self, ids: Tensor, rows: Tensor) -> Iterator[None]:
        """While the context is open, read these rows [R, D] instead of the table.

        ids: int64 [R] distinct, of the rows, ascending. Others must not be read, except for
        padding, which may be any row: their contents are not defined.
        """
        on_host = ids.device.type == "cpu"
        if on_host:
            if len(self._places) != len(self):
                self._places = torch.zeros(len(self), dtype=torch.int64)
            self._places[ids] = torch.arange(len(ids))
        self._read = ids, rows
        try:
            yield
        finally:
            self._read = None
            if on_host:
                self._places[ids] = 0

    @property
    def is_reading(self) -> bool:
        """Whether a context of :meth:`reading` is open."""
        return self._read is not None

    def within(self, ids: Tensor) -> tuple[Table, Tensor]:
        """The table to read and the ids in it: itself, or the rows of :meth:`reading`."""
        if self._read is None:
            return self, ids
        read, rows = self._read
        if read.device.type == "cpu":
            return FixedTable(rows), self._places[ids]
        # on a device without 8 bytes for each row of the whole table
        return FixedTable(rows), torch.searchsorted(read, ids.long()).clamp_(max=len(read) - 1)

    def __len__(self) -> int:
        return len(self.weight)

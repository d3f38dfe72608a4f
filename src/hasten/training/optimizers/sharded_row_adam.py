"""Row-wise Adam of a table that is sharded over processes.

Each process holds the weights and moments of its rows only. In a step it asks the holders for the
rows that its own examples read, and sends the gradients of these rows back. The holders add them up
in the order of ranks and update the rows. So what a process exchanges is in proportion to the rows
that its examples read, and its memory does not grow with the table. The updates are those of
:class:`.RowAdam`, on a GPU of :class:`.DeviceRowAdam`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.sharded_table import JoinedRows, Requested, Shard
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.device_row_adam import DeviceJoinedRowAdam, DeviceRowAdam
from hasten.training.optimizers.joined_row_adam import JoinedRowAdam
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.optimizers.sharded_adam import norm_over_shards


class ShardedRowAdam(RowAdam):
    """:class:`.RowAdam` whose table, with ``table.weight`` [R, D], is the shard of this process."""

    gathers = False

    def __init__(
        self,
        parameters: Sequence[Tensor],
        options: TrainingOptions,
        table: TableRows,
        shard: Shard | JoinedRows,
    ) -> None:
        self.shard, self._ask = shard, shard.requests()
        self._read = table.on_device or table.read
        on_device = None if table.on_device is None else self._request
        table = replace(table, read=self._request, on_device=on_device)
        super().__init__(parameters, options, table)
        self._requested: Requested | None = None
        #: the rows of this process that a step of some process reads, which are updated
        self._held: Tensor = self.weight

    def _request(self, batch: Batch) -> Tensor:
        """int64 [U] the rows of this process that the processes read for a batch."""
        self._requested = self._ask(self._read(batch))
        return self._requested.rows

    def gather_rows(self, batch: Batch) -> Tensor:
        """[S, D] the rows that this process reads, up to date: a leaf for gradients."""
        self._held = super().gather_rows(batch)
        assert self._requested is not None
        leaf = self._requested.fetch(self._held.detach()).requires_grad_()
        self.parameters[self._number] = leaf
        return leaf

    @property
    def to_sum(self) -> list[Tensor]:
        return [p for n, p in enumerate(self.parameters) if n != self._number]

    def combine_row_gradients(self) -> None:
        leaf = self.parameters[self._number]
        assert self._requested is not None
        # None: no examples of this process
        grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        self._held.grad = self._requested.sum_back(grad)
        self.parameters[self._number] = self._held

    def gradient_norm(self, kind: float = 2.0) -> Tensor:
        return norm_over_shards(self.shard, [self._held], self.to_sum, kind)

    def _restore_table(self) -> dict[str, Tensor]:
        leaf = self.parameters[self._number]
        state = super()._restore_table()
        if leaf is not self._held:  # the step was not taken
            self.state.pop(self._held, None)
        return state


class ShardedJoinedRowAdam(ShardedRowAdam, JoinedRowAdam):
    """:class:`.JoinedRowAdam` of the shards of several tables."""


class ShardedDeviceRowAdam(ShardedRowAdam, DeviceRowAdam):
    """:class:`.DeviceRowAdam` of the shard of this process."""


class ShardedDeviceJoinedRowAdam(ShardedRowAdam, DeviceJoinedRowAdam):
    """:class:`.DeviceJoinedRowAdam` of the shards of several tables."""

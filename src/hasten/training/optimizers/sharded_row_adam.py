"""Row-wise Adam of a table that is sharded over processes.

Each process holds the weights and moments of its rows only. A step gathers the rows that the global
batch reads on all processes; their gradients are summed over processes like all others. Then each
process updates the rows that it holds. So a step exchanges the rows that it reads, and its memory
does not grow with the table. The updates are those of :class:`.RowAdam`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.sharded_table import JoinedRows, Shard
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.joined_row_adam import JoinedRowAdam
from hasten.training.optimizers.row_adam import RowAdam


class ShardedRowAdam(RowAdam):
    """:class:`.RowAdam` whose table, with ``table.weight`` [R, D], is the shard of this process."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        options: TrainingOptions,
        table: TableRows,
        shard: Shard | JoinedRows,
    ) -> None:
        self.shard, self._whole = shard, table
        super().__init__(parameters, options, replace(table, read=self._own_ids))
        #: the rows of this process among those of a step, and which they are
        self._own: Tensor = self.weight
        self._places: slice | Tensor = slice(0)
        self.register_step_pre_hook(ShardedRowAdam._update_own)

    def _own_ids(self, batch: Batch) -> Tensor:
        """int64 [S_own] the rows of a batch that this process holds, numbered from its first."""
        self._places, held = self.shard.held(self._whole.read(batch))
        return held

    def gather_rows(self, batch: Batch) -> Tensor:
        """[S, D] the rows of a batch on all processes, up to date: a leaf for gradients."""
        self._own = super().gather_rows(batch)
        rows = self.shard.exchange(self._whole.read(batch), self._own.detach())
        leaf = rows.requires_grad_()
        self.parameters[self._number] = leaf
        return leaf

    def _update_own(self, _arguments: Any, _named: Any) -> None:
        """Replace the rows of the step by those of this process, with their gradients."""
        read = self.parameters[self._number]
        assert read.grad is not None
        self.state.pop(read, None)
        self._own.grad = read.grad[self._places]
        self.parameters[self._number] = self._own

    def _restore_table(self) -> dict[str, Tensor]:
        leaf = self.parameters[self._number]
        table = super()._restore_table()
        if leaf is not self._own:  # the step was not taken
            self.state.pop(self._own, None)
        return table


class ShardedJoinedRowAdam(ShardedRowAdam, JoinedRowAdam):
    """:class:`.JoinedRowAdam` of the shards of several tables."""

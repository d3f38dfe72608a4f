"""Adam of a table that is sharded over processes and whose rows all have gradients.

The loss, or the encoder of a graph, leaves the gradients of its rows on each process. With a loss
each process also asks the holders for the rows that its examples read as inputs, and sends their
gradients back, which the holders add to those of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.sharded_table import JoinedRows, Requested, Shard
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.precision import gradient_norm


class ShardedAdam(PhaseAdam):
    """:class:`.PhaseAdam` of the rows of this process, ``table.weight`` [R, D], and of others.

    ``table.beside`` are vectors [R] of these rows.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        options: TrainingOptions,
        table: TableRows,
        shard: Shard,
    ) -> None:
        super().__init__(parameters, options)
        self.table, self.weight, self.shard = table, table.weight, shard
        self._sharded = (self.weight, *table.beside)
        held = {id(each) for each in self._sharded}
        self._rest = [p for p in self.parameters if id(p) not in held]
        self._ask = shard.requests()
        #: the rows that a step reads as inputs, and those of this process that others read
        self._leaf: Tensor | None = None
        self._requested: Requested | None = None

    def gather_rows(self, batch: Batch) -> Tensor | None:
        """[S, D] the rows of a batch that this process reads: a leaf for gradients."""
        if self.table.candidates is not None:
            return None
        self._requested = self._ask((self.table.on_device or self.table.read)(batch))
        held = self.weight.detach().index_select(0, self._requested.rows)
        self._leaf = self._requested.fetch(held).requires_grad_()
        return self._leaf

    @property
    def to_sum(self) -> list[Tensor]:
        return self._rest

    def combine_row_gradients(self) -> None:
        assert self.weight.grad is not None, "all processes take part in the loss"
        leaf, self._leaf = self._leaf, None
        if leaf is not None:
            assert self._requested is not None
            # None: no examples of this process
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            sums = self._requested.sum_back(grad)
            self.weight.grad.index_add_(0, self._requested.rows, sums)

    def gradient_norm(self, kind: float = 2.0) -> Tensor:
        return norm_over_shards(self.shard, self._sharded, self._rest, kind)


def norm_over_shards(
    shard: Shard | JoinedRows, sharded: Sequence[Tensor], others: Sequence[Tensor], kind: float
) -> Tensor:
    """A norm of all gradients: of the shards of all processes, and of others. A collective."""
    held = [each for each in sharded if each.numel()]  # none: no process reads its rows
    own = gradient_norm(held, kind) if held else sharded[0].new_zeros(())
    norms = shard.of_all(own)
    if others:
        norms = torch.cat([norms, gradient_norm(others, kind).view(1)])
    total: Tensor = torch.linalg.vector_norm(norms, kind)
    return total

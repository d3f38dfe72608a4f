"""Adam of a table that is sharded over processes and whose rows all have gradients.

The loss, or the encoder of a graph, leaves the gradients of its rows on each process. With a loss a
step also gathers the rows that the global batch reads as inputs, on all processes; their gradients
are summed over processes like those of the other parameters, and added to those of the rows that
this process holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.sharded_table import Shard
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.precision import gradient_norm


class ShardedAdam(PhaseAdam):
    """:class:`.PhaseAdam` of the rows of this process, ``table.weight`` [R, D], and of others.

    ``table.beside`` are vectors [R] of these rows.
    """

    gathers = True

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
        #: the rows that a step reads as inputs, and those of them that this process holds
        self._leaf: Tensor | None = None
        self._held = torch.empty(0)
        self._places: slice | Tensor = slice(0)

    def gather_rows(self, batch: Batch) -> Tensor | None:
        """[S, D] the rows of a batch on all processes: a leaf for gradients."""
        if self.table.candidates is not None:
            return None
        ids = self.table.read(batch)
        self._places, self._held = self.shard.held(ids)
        own = self.weight.detach().index_select(0, self._held)
        self._leaf = self.shard.exchange(ids, own).requires_grad_()
        return self._leaf

    @property
    def to_sum(self) -> list[Tensor]:
        return self._rest if self._leaf is None else [self._leaf, *self._rest]

    def add_rows(self) -> None:
        assert self.weight.grad is not None, "all processes take part in the loss"
        if self._leaf is not None:
            assert self._leaf.grad is not None
            self.weight.grad.index_add_(0, self._held, self._leaf.grad[self._places])
            self._leaf = None

    def gradient_norm(self, kind: float = 2.0) -> Tensor:
        norms = self.shard.of_all(gradient_norm(self._sharded, kind))
        if self._rest:
            norms = torch.cat([norms, gradient_norm(self._rest, kind).view(1)])
        total: Tensor = torch.linalg.vector_norm(norms, kind)
        return total

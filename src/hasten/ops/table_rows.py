"""A table of which a training step reads few rows, for optimizers that update these rows only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hasten.ops.sharded_table import JoinedRows, Shard


@dataclass(frozen=True)
class TableRows:
    """A large table of which a step reads few rows. ``encode`` gathers them; nothing else reads it.

    weight: [N, D]. read: called with a :class:`~hasten.objectives.base.Batch`, returns the distinct
    rows (int64 [S], on the host) that a step reads. of_part: of a batch that is divided over
    processes, those of this process, unless the phase has a ``union``; else of the global batch.
    at_most: the expected S. shard: the
    rows of the table that ``weight`` holds, if it is sharded over processes. others: further tables
    of width D, with rows numbered after those of ``weight``; a phase with such tables has no other
    parameters. whole: the loss reads all rows too, so all have gradients. beside: vectors [N] that
    are sharded like the rows, such as biases.
    """

    weight: nn.Parameter
    read: Callable[[Any], Tensor]
    at_most: int
    shard: Shard | JoinedRows | None = None
    others: tuple[nn.Parameter, ...] = ()
    whole: bool = False
    beside: tuple[nn.Parameter, ...] = ()
    of_part: bool = False

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """Those of all tables."""
        return self.weight, *self.others

    def __len__(self) -> int:
        """The number of rows of all tables."""
        return sum(map(len, self.weights))

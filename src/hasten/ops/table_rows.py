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
    rows (int64 [S], on the host) that the global batch reads. at_most: the expected S. shard: the
    rows of the table that ``weight`` holds, if it is sharded over processes. others: further tables
    of width D, with rows numbered after those of ``weight``; a phase with such tables has no other
    parameters. whole: the loss reads all rows too, so all have gradients. beside: vectors [N] that
    are sharded like the rows, such as biases. candidates: the number of candidates, of a table that
    a graph encoder reads whole and computes their vectors from; None: they are rows of the table.
    """

    weight: nn.Parameter
    read: Callable[[Any], Tensor]
    at_most: int
    shard: Shard | JoinedRows | None = None
    others: tuple[nn.Parameter, ...] = ()
    whole: bool = False
    beside: tuple[nn.Parameter, ...] = ()
    candidates: int | None = None

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """Those of all tables."""
        return self.weight, *self.others

    def __len__(self) -> int:
        """The number of rows of all tables."""
        return sum(map(len, self.weights))

"""A table of which a training step reads few rows, for optimizers that update these rows only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from hasten.arrays import Int64
from hasten.ops.sharded_table import JoinedRows, Shard

#: least elements of a table on a GPU of which steps update only the rows that they read. An
#: estimate: a step of dense Adam moves 1.3 GB for them, row-wise Adam launches 57 kernels more
MANY_ELEMENTS = 1 << 25


@dataclass(frozen=True)
class TableRows:
    """A large table of which a step reads few rows. ``encode`` gathers them; nothing else reads it.

    weight: [N, D]. read: called with a :class:`~hasten.objectives.base.Batch`, returns the distinct
    rows (int64 [S], on the host) that a step reads. reads_local: of a batch that is split over
    processes, those of this process, unless the phase has a ``union``; else of the global batch.
    expected_rows: the expected S; batches of sharded tables are split in any case. shard: the rows
    of the table that ``weight`` holds, if it is sharded. others: further tables of width D, with
    rows numbered after those of ``weight``; a phase with such tables has no other parameters.
    whole: the loss reads all rows too, so all have gradients. beside: vectors [N] that are sharded
    like the rows, such as biases. on_device: for a table on a GPU, what ``read`` returns, as a
    tensor of the GPU and in few different numbers; None: all rows are updated. candidates: the
    number of candidates, of a table that a graph encoder reads whole and computes their vectors
    from; None: they are rows of the table.
    """

    weight: nn.Parameter
    read: Callable[[Any], Tensor]
    expected_rows: int
    shard: Shard | JoinedRows | None = None
    others: tuple[nn.Parameter, ...] = ()
    whole: bool = False
    beside: tuple[nn.Parameter, ...] = ()
    on_device: Callable[[Any], Tensor] | None = None
    candidates: int | None = None
    reads_local: bool = False

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """Those of all tables."""
        return self.weight, *self.others

    def __len__(self) -> int:
        """The number of rows of all tables."""
        return sum(map(len, self.weights))


def is_large_on_device(weights: Sequence[Tensor]) -> bool:
    """Whether tables on a CUDA device are so large that a step should not update all rows."""
    elements = sum(weight.numel() for weight in weights)
    return weights[0].device.type == "cuda" and elements >= MANY_ELEMENTS


def with_other_rows(rows: Int64, most: int, count: int) -> Int64:
    """[most] these rows of 0..count-1 and the first others, ascending, to have a fixed number.

    rows: distinct, ascending, at most ``most``. A row without a gradient may be updated too.
    """
    more = most - len(rows)
    assert 0 <= more <= count - len(rows), "there are not as many rows"
    candidates = np.arange(min(count, most), dtype=np.int64)
    others = np.setdiff1d(candidates, rows, assume_unique=True)[:more]
    return np.sort(np.concatenate([rows, others]))

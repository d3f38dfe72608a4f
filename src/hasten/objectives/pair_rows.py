"""Pairwise training phase that gathers the rows of users and items once per step.

The rows of all users, positives and negatives of the global batch are gathered once. The gradient
is that of these rows, and :class:`~hasten.training.optimizers.joined_row_adam.JoinedRowAdam`
updates no others. The result is that of :class:`.PairwisePhase` over whole tables, except for
rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import distinct
from hasten.objectives.base import Batch, Encoded
from hasten.objectives.pairwise import Pairs, PairwisePhase
from hasten.objectives.permutations import LastValueCache
from hasten.ops.table_rows import TableRows, with_other_rows


class PairRowsPhase(PairwisePhase):
    """:class:`.PairwisePhase` of two tables of one width, the first of them that of the users.

    Rows are numbered through both tables. The model's ``pair_vectors`` gets the rows of the step
    [S, D] as ``encoded[0]``, and in ``pairs.nodes`` their places for users, positives and
    negatives.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        users, items = self._parameters
        self.user_count = len(self.known_items)  # ``users`` may hold fewer
        self.varying = "each batch reads another number of rows"
        self._read: LastValueCache[Tensor] = LastValueCache()
        on_device = None if self.device.type == "cpu" else self.on_device
        self.table = TableRows(
            users, self.read, 3 * self.batch_size, others=(items,), on_device=on_device
        )

    def rows_of(self, pairs: Pairs) -> Tensor:
        """int64 [3B] the rows of users, positives and negatives in both tables together."""
        first = self.user_count
        return torch.cat([pairs.user, pairs.positive + first, pairs.negative + first])

    def read(self, batch: Batch) -> Tensor:
        """int64 [S] the distinct rows that a step reads, ascending."""

        def find() -> Tensor:
            rows = self.rows_of(self.pairs(batch, batch.ids))
            read, count = distinct(rows.numpy()), sum(len(table) for table in self._parameters)
            if self.varying is None:
                read = with_other_rows(read, min(len(rows), count), count)
            return torch.from_numpy(read)

        return self._read.get(batch.key, find)

    def fix_shapes(self) -> None:
        """Further rows are gathered, so that all batches of one size read as many."""
        self.varying = None

    def encode_inputs(self, batch: Batch) -> Tensor:
        return self.read(batch)

    def term_inputs(self, batch: Batch, ids: Tensor) -> Pairs:
        pairs = self.pairs(batch, ids)
        return replace(pairs, nodes=torch.searchsorted(self.read(batch), self.rows_of(pairs)))

    def encode(self, batch: Batch) -> Encoded:
        users, items = self._parameters
        if self.device.type != "cpu":  # what is of the users is not known to the host
            rows, first = self.on_device(batch), self.user_count
            of_users = F.embedding(rows.clamp(max=first - 1), users)
            of_items = F.embedding((rows - first).clamp_(min=0), items)
            return (torch.where((rows < first)[:, None], of_users, of_items),)
        rows = self.read(batch)
        split = int(torch.searchsorted(rows, self.user_count))
        of_users, of_items = rows[:split], rows[split:] - self.user_count
        return (torch.cat([users.index_select(0, of_users), items.index_select(0, of_items)]),)

"""Pairwise training phases of tables that can be sharded.

:class:`PairRowsPhase` gathers the rows of users and items once per step: of all users, positives
and negatives of the global batch. Each process finds those of its own pairs, and gets the ids of
the others from them. The gradient is that of these rows, and
:class:`~hasten.training.optimizers.joined_row_adam.JoinedRowAdam` updates no others.
:class:`GraphPairsPhase` is of models that encode a whole graph. The results are those of
:class:`.PairwisePhase` over whole tables, except for rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import distinct
from hasten.objectives.base import Batch, Encoded
from hasten.objectives.pairwise import PairwiseExamples, PairwiseModel, PairwisePhase
from hasten.ops.graph.csr import CSR
from hasten.ops.permutations import LastValueCache
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
        self.user_count = len(self.training_items)  # ``users`` may hold fewer
        self.no_capture_reason = "each batch reads a different number of rows"
        self._read: LastValueCache[Tensor] = LastValueCache()
        #: with their examples, which the entry keeps so that no others have their identity
        self._last: LastValueCache[tuple[Tensor, PairwiseExamples]] = LastValueCache()
        on_device = None if self.device.type == "cpu" else self.on_device
        most = 3 * self.batch_size
        self.table = TableRows(
            users, self.read, most, others=(items,), on_device=on_device, reads_local=True
        )

    def rows_of(self, pairs: PairwiseExamples) -> Tensor:
        """int64 [3B] the rows of users, positives and negatives in both tables together."""
        first = self.user_count
        return torch.cat([pairs.user, pairs.positive + first, pairs.negative + first])

    def read(self, batch: Batch) -> Tensor:
        """int64 [S] the distinct rows that a step reads, ascending."""

        def find() -> Tensor:
            parts = [self.rows_of(self._pairs_once(batch, ids)) for ids in batch.local_ids]
            rows = torch.cat([batch.ids[:0], *parts])
            own, count = distinct(rows.numpy()), sum(len(table) for table in self._parameters)
            if self.union is not None and batch.local_micro_batches is not None:
                return self.union(torch.from_numpy(own))
            if self.no_capture_reason is None and batch.local_micro_batches is None:
                own = with_other_rows(own, min(len(rows), count), count)
            return torch.from_numpy(own)

        return self._read.get(batch.local_key, find)

    def _pairs_once(self, batch: Batch, ids: Tensor) -> PairwiseExamples:
        """:meth:`pairs`, once if it is called with the same examples again."""
        return self._last.get((batch.key, id(ids)), lambda: (ids, self.pairs(batch, ids)))[1]

    def fix_shapes(self) -> None:
        """Further rows are gathered, so that all batches of one size read as many."""
        self.no_capture_reason = None

    def encode_inputs(self, batch: Batch) -> Tensor:
        return self.read(batch)

    def term_inputs(self, batch: Batch, ids: Tensor) -> PairwiseExamples:
        pairs = self._pairs_once(batch, ids)
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


class GraphPairsModel(PairwiseModel, Protocol):
    """What :class:`GraphPairsPhase` needs from a model."""

    def distinct(self, nodes: Tensor) -> Tensor:
        """The distinct nodes, ascending."""
        ...

    def shard_graph(self, interactions: CSR) -> None:
        """Keep the part of the graph of the nodes of this process. interactions: of training."""
        ...


class GraphPairsPhase(PairwisePhase):
    """:class:`.PairwisePhase` whose first parameter is a table of all nodes, encoded as a graph."""

    model: GraphPairsModel

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        (nodes, *_), count = self._parameters, 3 * self.batch_size
        candidates = self.known_items.count
        self.shardable = TableRows(nodes, self.read, count, whole=True, candidates=candidates)

    def read(self, batch: Batch) -> Tensor:
        """int64 [S] the distinct nodes of a batch, ascending."""
        return self.model.distinct(self.model.pair_nodes(self.pairs(batch, batch.ids)))

    def shard(self, table: TableRows) -> None:
        super().shard(table)
        self.model.shard_graph(self.training_items)

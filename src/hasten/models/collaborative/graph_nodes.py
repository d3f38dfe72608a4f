"""Models over one table of the nodes of a graph, which a run can shard over processes.

If the table is sharded, a process holds the rows of the graph of its nodes
(:mod:`hasten.ops.graph.graph_shard`), computes the vectors of its nodes, and ranks an equal part of
the items.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.models.collaborative.base import NodeVectorModel
from hasten.objectives.pair_rows import GraphPairsPhase
from hasten.objectives.pairwise import PairwisePhase
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.graph_shard import GraphShard
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.sharded_table import Shard, ShardedFixedTable, ShardedTable, first_rows
from hasten.ops.table import EmbeddingTable
from hasten.ops.transfer import to_device
from hasten.scoring import Catalog, FactorScorer, RecommenderQueries


class GraphNodeModel(NodeVectorModel):
    """A model with a table ``nodes``: of the items first, and of the users.

    A subclass makes the table by :func:`.shardable_table`, and reads :attr:`graph_shard` instead of
    its graph if it is there.
    """

    nodes: EmbeddingTable
    #: the graph of the nodes of this process, if their table is sharded
    graph_shard: GraphShard | None = None
    _sharded_vectors: tuple[ShardedFixedTable, ShardedFixedTable] | None = None

    @abstractmethod
    def shard_graph(self, interactions: CSR) -> None:
        """Make :attr:`graph_shard`, unless it is there, and drop the whole graph."""

    @abstractmethod
    def own_vectors(self, part: GraphShard) -> Tensor:
        """[R, D] vectors of the nodes of this process. A collective."""

    @property
    def shard(self) -> Shard | None:
        """The nodes that this process holds; None: all."""
        return self.nodes.shard if isinstance(self.nodes, ShardedTable) else None

    def phase_class(self, training: TrainingOptions) -> type[PairwisePhase]:
        on_host, chosen = self.device.type == "cpu", training.shard_tables
        shards = chosen == "always" or (chosen == "auto" and on_host)
        return GraphPairsPhase if shards else PairwisePhase

    def sharded_vectors(self, part: GraphShard) -> tuple[ShardedFixedTable, ShardedFixedTable]:
        """The vectors of all nodes, and of the items. A collective."""
        if self._sharded_vectors is not None:
            return self._sharded_vectors
        vectors = self.own_vectors(part)
        items = first_rows(vectors, part.shard, self.sizes.items)
        return ShardedFixedTable(vectors, part.shard), items

    @contextmanager
    def encoded_once(self) -> Iterator[None]:
        if self.graph_shard is None:
            with super().encoded_once():
                yield
            return
        self._sharded_vectors = self.sharded_vectors(self.graph_shard)
        try:
            yield
        finally:
            self._sharded_vectors = None

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        if self.graph_shard is None:
            return super().scorer(queries)
        nodes, items = self.sharded_vectors(self.graph_shard)
        user = to_device(torch.from_numpy(queries.user), self.device) + self.first_user
        return FactorScorer(nodes.rows(user), Catalog(items))

"""LightGCN: the mean of embeddings over neighborhoods of growing depth (He et al. 2020).

``E⁽ᵏ⁺¹⁾ = A E⁽ᵏ⁾`` with ``A[u, i] = A[i, u] = 1 / sqrt(|N(u)| |N(i)|)`` over the training pairs.
The vector of a node is the mean of its layers 0 to K; the score of a user and an item is the inner
product of their vectors. Only layer 0 is trained, with the squared norms of the batch's layer 0 and
BPR, as in the paper, or a softmax over the negatives of the batch
(:mod:`hasten.ops.losses.pair_softmax`). In training, the last layer is computed only for the nodes
of the batch; the result is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hasten.config import ModelOptions, OnlyWith, RunConfig, TrainingOptions
from hasten.data.tables import TRAIN, Dataset
from hasten.models.collaborative.graph_nodes import GraphNodeModel
from hasten.models.data_size import DataSize, with_graph_batches
from hasten.models.interface import Sizes
from hasten.models.rows import Rows
from hasten.models.search_space import Choice
from hasten.models.supports import Supports
from hasten.objectives.base import Encoded, Phase
from hasten.objectives.pairwise import PairwiseExamples, Sampling
from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.bipartite import Bipartite, WeightedGraph
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.graph_shard import GraphShard
from hasten.ops.graph.propagated_rows import RequestedNodes, propagated_rows
from hasten.ops.graph.spmm import SparseGraph
from hasten.ops.graph.spmm_rows import RowPositions, spmm_rows
from hasten.ops.losses.pair_softmax import pair_softmax
from hasten.ops.sharded_table import shardable_table
from hasten.ops.transfer import to_device


class LightGCNOptions(ModelOptions):
    """Options of LightGCN."""

    name: Literal["lightgcn"] = "lightgcn"
    width: int = Field(64, ge=1, description="embedding dimension D")
    layers: int = Field(3, ge=1, le=1000, description="number K of propagation layers")
    l2: float = Field(1e-4, ge=0, description="L2 penalty of the pairs' embeddings (layer 0)")
    sampling: Sampling = Field(
        "users", description="training pairs: users uniformly, or every interaction once per epoch"
    )
    loss: Literal["bpr", "softmax"] = Field(
        "bpr", description="loss of a pair: BPR with one sampled negative, or a softmax of cosines "
        "over the negatives of all pairs of a step"
    )  # fmt: skip
    temperature: Annotated[float, OnlyWith("loss", "softmax")] = Field(
        0.15, gt=0, description="temperature of the softmax"
    )


class LightGCN(GraphNodeModel):
    """Embeddings [N + U, D] of the items, then the users; :meth:`phases` builds the graph."""

    name = "lightgcn"
    summary = "graph convolution: the mean of propagated embeddings (He et al. 2020)"
    Options = LightGCNOptions
    defaults = {**GraphNodeModel.defaults, "lr": 5e-3}
    defaults_from_data = (*GraphNodeModel.defaults_from_data, "training.batch_size")
    supports = Supports(shard_tables=True)
    search = {**GraphNodeModel.search, "model.layers": Choice(1, 2, 3, 4)}

    options: LightGCNOptions

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """Larger batches for larger graphs, as each step propagates through the whole graph."""
        config = with_graph_batches(size, config)
        batch_size = config.training.batch_size
        return {**super().defaults_for(size, config), "training.batch_size": batch_size}

    def __init__(self, options: LightGCNOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.nodes = shardable_table(sizes.items + sizes.users, options.width)
        self.graph: WeightedGraph | None = None

    def rows_of(self) -> Mapping[str, Rows]:
        return {"nodes.weight": Rows.of("items", "users")}

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        pairs = CSR.of(dataset.histories(TRAIN)).distinct()
        if self.shard is None:
            adjacency = Bipartite.build(pairs, self.sizes.items, "symmetric").adjacency
            self.graph = adjacency.to(self.nodes.weight)
        else:
            self.shard_graph(pairs)
        return super().phases(dataset, training)

    def shard_graph(self, interactions: CSR) -> None:
        """With sharded tables: hold the edges into the nodes of this process, and no others."""
        if self.graph_shard is None:
            assert self.shard is not None
            like = torch.empty(0, dtype=self.nodes.weight.dtype)
            part = GraphShard.of_pairs(self.shard, interactions, self.sizes.items, like)
            self.graph_shard, self.graph = part.to(self.device), None

    def pair_inputs(self, pairs: PairwiseExamples) -> RowPositions | RequestedNodes:
        """The distinct nodes of a batch: ``RequestedNodes`` with sharded tables."""
        nodes = self.distinct(self.pair_nodes(pairs))
        if self.graph_shard is not None:
            return RequestedNodes.of(self.graph_shard, nodes)
        return self._row_positions(nodes)

    def row_graphs(self) -> Sequence[SparseGraph]:
        """The graph of which :meth:`encode_pairs` reads rows."""
        assert self.graph is not None
        return [self.graph.structure]

    def encode_pairs(self, inputs: RowPositions | RequestedNodes, seed: int | None) -> Encoded:
        """Of the S distinct nodes of a batch: vectors [S, D], layer 0 [S, D], ascending ids [S]."""
        layer_0, mean = self._propagate(inputs)
        return mean, layer_0, inputs.rows

    @property
    def shares_negatives(self) -> bool:
        return self.options.loss == "softmax"

    def fix_shapes(self) -> str | None:
        if self.shares_negatives:
            return "each batch has a different number of distinct negatives"
        return super().fix_shapes()

    def pair_loss(
        self, encoded: Encoded, pairs: PairwiseExamples, vectors: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        shared = pairs.shared
        if shared is None:
            return super().pair_loss(encoded, pairs, vectors)
        negatives = encoded[0].index_select(0, torch.searchsorted(encoded[-1], shared.items))
        user, positive, _ = vectors
        temperature = self.options.temperature
        return pair_softmax(
            user, positive, negatives, shared.log_weights, shared.masked, temperature
        )

    def penalized(self, encoded: Encoded, pairs: PairwiseExamples) -> tuple[Tensor, Tensor, Tensor]:
        """Layer 0 of the users, positives and negatives, [B, D] each."""
        _, layer_0, nodes = encoded
        return self.take(layer_0, nodes, pairs)

    def _row_positions(self, nodes: Tensor) -> RowPositions:
        assert self.graph is not None
        return RowPositions.of(self.graph.structure, nodes)

    def _propagate(self, requested: RowPositions | RequestedNodes) -> tuple[Tensor, Tensor]:
        """[S, D] layer 0, and [S, D] the mean of all layers, of the requested nodes."""
        count = self.options.layers
        if isinstance(requested, RequestedNodes):
            assert self.graph_shard is not None
            first, later = propagated_rows(self.graph_shard, self.nodes.weight, requested, count)
            return first, (first + later) / (count + 1)
        assert self.graph is not None
        x = self.nodes.block(0, len(self.nodes))
        layers: list[Tensor] = []
        for _ in range(count - 1):
            layers.append(x.index_select(0, requested.rows))
            x = self.graph @ x
        # returns the requested rows of x, and those of one more layer: the last two of K + 1
        layers += spmm_rows(self.graph.structure, self.graph.weights, x, requested)
        return layers[0], sum(layers[1:], layers[0]) / len(layers)

    def all_vectors(self) -> Tensor:
        every = self._row_positions(torch.arange(len(self.nodes)))
        return self._propagate(to_device(every, self.device))[1]

    def own_vectors(self, part: GraphShard) -> Tensor:
        """As :meth:`all_vectors`, of the nodes of this process."""
        first = self.nodes.weight
        power, total = first.to(autocast_dtype(first)), first.clone()
        for _ in range(self.options.layers):
            power = part.multiply(power)
            total += power
        return total.div_(self.options.layers + 1)

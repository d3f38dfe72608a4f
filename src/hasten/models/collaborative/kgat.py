"""KGAT: recommendation with attention over interactions and a knowledge graph (Wang et al. 2019).

Nodes e⁰ [E + U, D] are entities and users. A layer aggregates the neighbors of every node,
``e_N = sum over (h, r, t) of π(h, r, t) e_t``, and combines them with the node itself:

- ``bi-interaction``: ``lrelu((e + e_N) W1 + b1) + lrelu((e ⊙ e_N) W2 + b2)``;
- ``gcn``: ``lrelu((e + e_N) W + b)``;  ``graphsage``: ``lrelu([e, e_N] W + b)``.

The next layer receives the result after dropout, without normalization. The vector of a node is
``[e⁰, e¹/‖e¹‖, e²/‖e²‖, ...]``, the score of a user and an item the inner product of their vectors.
In every epoch two phases run one after the other, each with its own optimizer over the shared
nodes: pairs (BPR on the vectors) and translation (TransR). At the end of the epoch the attention is
recomputed without gradient: the softmax over the edges of a head of ``(e_t W_r) · tanh(e_h W_r +
e_r)``. Before the first update, the weight of an edge is 1 / (the number of edges with the same
head and the same relation).

In training, the last layer is computed only for the nodes of the batch, and the layer before it for
these and their neighbors, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from hasten.arrays import Int64
from hasten.config import TrainingOptions
from hasten.data.tables import Dataset
from hasten.errors import CheckpointError
from hasten.models.collaborative.aggregate import aggregate, mix
from hasten.models.collaborative.graph_nodes import GraphNodeModel
from hasten.models.collaborative.kgat_layers import (
    BatchNodes,
    Layer,
    Mixing,
    joined,
    propagate_sharded,
    sharded_vectors,
)
from hasten.models.collaborative.kgat_options import KGATOptions
from hasten.models.collaborative.relation_attention import (
    HeadRelations,
    RelationEdges,
    relation_attention,
    sharded_attention,
)
from hasten.models.collaborative.segment_softmax import segment_softmax
from hasten.models.collaborative.translation_loss import translation_loss
from hasten.models.interface import Sizes
from hasten.models.rows import Rows
from hasten.models.search_space import Choice, Range
from hasten.models.supports import Supports
from hasten.objectives.base import Encoded, Phase
from hasten.objectives.pairwise import PairwiseExamples
from hasten.objectives.translation import TranslationBatch, TranslationPhase
from hasten.ops.graph.best_paths import PathGraph
from hasten.ops.graph.collaborative_graph import CollaborativeGraph
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.graph_shard import GraphShard
from hasten.ops.graph.propagated_rows import RequestedNodes
from hasten.ops.graph.spmm import EdgeWeights, SparseGraph
from hasten.ops.graph.spmm_rows import RowPositions, spmm_rows
from hasten.ops.random import seed_device
from hasten.ops.sharded_table import Shard, shardable_table
from hasten.ops.table import EmbeddingTable
from hasten.ops.transfer import to_device


class KGAT(GraphNodeModel):
    """The model. :meth:`phases` builds the graph from the data."""

    name = "kgat"
    summary = "graph attention over interactions and a knowledge graph (Wang et al. 2019)"
    reads = "facts"
    Options = KGATOptions
    defaults = {**GraphNodeModel.defaults, "lr": 2e-3}
    supports = Supports(recompute=True, shard_tables=True)
    search = {
        **GraphNodeModel.search,
        "model.layers": Choice("64", "64,32"),
        "model.dropout": Range(0.0, 0.4),
        "model.kg_l2": Range(1e-6, 1e-2, log=True),
    }

    options: KGATOptions

    def __init__(self, options: KGATOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        directed_relations = 2 * sizes.relations + 2
        self.nodes = shardable_table(sizes.entities + sizes.users, options.width)
        self.relations = EmbeddingTable(directed_relations, options.relation_width)
        shape = directed_relations, options.width, options.relation_width
        self.projections = nn.Parameter(torch.empty(shape))
        for matrix in self.projections.data:
            nn.init.xavier_normal_(matrix)
        widths = (options.width, *options.layers)
        self.layers = nn.ModuleList(
            Layer(width, out, options.aggregator) for width, out in pairwise(widths)
        )
        self.graph: SparseGraph | None = None

    def rows_of(self) -> Mapping[str, Rows]:
        # 2 relations of interactions (one per direction), then 2R of the triples
        relations = Rows.of(2, "relations", "relations")
        nodes = Rows.of("entities", "users")
        return {"nodes.weight": nodes, "relations.weight": relations, "projections": relations}

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """Pairs, then translation. Builds the graph."""
        options = self.options
        ckg, device = CollaborativeGraph.of(dataset), self.nodes.weight.device
        self.recompute = training.recompute
        weights = torch.from_numpy(ckg.normalized())
        if self.shard is None:
            self.graph = SparseGraph.build(ckg.head, ckg.tail, ckg.nodes, ckg.nodes).to(device)
            self.edges = RelationEdges.build(ckg.head, ckg.relation, ckg.tail).to(device)
            self.set_attention(weights)
        else:
            self._keep_graph_shard(self.shard, ckg.head, ckg.relation, ckg.tail, weights)
        parameters = [self.nodes.weight, *self.layers.parameters()]
        pairs = self.pairwise_phase(parameters, dataset, training)
        translation = TranslationPhase(
            self,
            [self.nodes.weight, self.relations.weight, self.projections],
            ckg,
            batch_size=options.kg_batch_size or 2 * training.batch_size,
            l2=options.kg_l2,
        )
        return [pairs, translation]

    def shard_graph(self, interactions: CSR) -> None:
        """Keep the edges of the nodes of this process, if :meth:`phases` built the whole graph."""
        if self.graph is not None and self.shard is not None:
            head, tail = self.graph.rows.cpu().numpy(), self.graph.host_columns.long().numpy()
            relation = self.edges.relations().cpu().numpy()
            self._keep_graph_shard(self.shard, head, relation, tail, self.attention.cpu())
            self.graph = None
            del self.edges, self.edge_weights

    def _keep_graph_shard(
        self, shard: Shard, head: Int64, relation: Int64, tail: Int64, weights: Tensor
    ) -> None:
        """From all edges, sorted by head, keep those whose head is a node of this process."""
        self.graph_shard = GraphShard.of_edges(shard, head, tail, weights).to(self.device)
        held = slice(*np.searchsorted(head, [shard.first, shard.stop]))
        self.head_relations = HeadRelations.build(head[held] - shard.first, relation[held])

    def adopt(self, weights: Mapping[str, Tensor]) -> bool:
        """Start from the users and items of a BPR-MF run on the same data, as in the paper.

        False if the weights are not those of BPR-MF.
        """
        if set(weights) != {"users.weight", "items.weight"}:
            return False
        sizes, width = self.sizes, self.options.width
        users, items = weights["users.weight"], weights["items.weight"]
        if users.shape != (sizes.users, width) or items.shape != (sizes.items, width):
            raise CheckpointError(
                f"the bprmf run has {len(users):,} users and {len(items):,} items of width "
                f"{items.shape[1]}, these data have {sizes.users:,} and {sizes.items:,} and "
                f"model.width is {width}: train bprmf on the same data with the same width"
            )
        with torch.no_grad():
            self.nodes.weight[: sizes.items] = items.to(self.nodes.weight)
            self.nodes.weight[sizes.entities :] = users.to(self.nodes.weight)
        return True

    @property
    def attention(self) -> Tensor:
        """float32 weights of the edges of this process, sorted by head."""
        shard = self.graph_shard
        return self.edge_weights.values if shard is None else shard.rows.values

    @property
    def attention_shard(self) -> Shard | None:
        """The edges that this process holds; None: all."""
        return None if self.graph_shard is None else self.graph_shard.edges

    def set_attention(self, values: Tensor) -> None:
        if self.graph_shard is not None:
            self.graph_shard = self.graph_shard.weigh(values)
            return
        assert self.graph is not None
        # overwrite the arrays of the earlier weights, whose shape is the same
        reused: EdgeWeights | None = getattr(self, "edge_weights", None)
        self.edge_weights = self.graph.weigh(values.to(self.nodes.weight.device), reused)

    def path_graph(self) -> PathGraph:
        """The graph with its attention; paths follow edges from head to tail."""
        assert self.graph is not None
        kind, tail = self.edges.relations(), self.graph.host_columns.long().numpy()
        weight = self.attention.cpu().double().numpy()
        return PathGraph(self.graph.bounds, tail, kind.numpy(), weight)

    @torch.no_grad()
    def refresh(self) -> None:
        """Recompute the attention. With sharded tables, all processes must call this."""
        parameters = self.nodes.weight, self.relations.weight, self.projections
        if self.graph_shard is not None:
            offsets = self.graph_shard.rows.offsets
            logits = sharded_attention(self.graph_shard, self.head_relations, *parameters)
        else:
            assert self.graph is not None
            offsets, logits = self.graph.offsets, relation_attention(self.edges, *parameters)
        self.set_attention(segment_softmax(logits, offsets))

    def translation(
        self, rows: Tensor, index: Tensor, batch: TranslationBatch
    ) -> tuple[Tensor, Tensor]:
        """The sums of the TransR loss and of its L2 term over the edges of a batch.

        Arguments: see :func:`.translation_loss`. On a GPU, edges are grouped in tiles.
        """
        relation = self.relations.rows(batch.relation)
        return translation_loss(rows, index, relation, self.projections, batch.tiles or batch.sizes)

    @property
    def first_user(self) -> int:
        return self.sizes.entities

    def pair_inputs(self, pairs: PairwiseExamples) -> BatchNodes | RequestedNodes:
        nodes, shard = self.distinct(self.pair_nodes(pairs)), self.graph_shard
        return self._batch_nodes(nodes) if shard is None else RequestedNodes.of(shard, nodes)

    def row_graphs(self) -> Sequence[SparseGraph]:
        """The graph of which :meth:`encode_pairs` reads rows."""
        assert self.graph is not None
        return [self.graph]

    def encode_pairs(self, inputs: BatchNodes | RequestedNodes, seed: int | None) -> Encoded:
        """Vectors of the nodes of a batch [S, ...], and these nodes, ascending."""
        if isinstance(inputs, RequestedNodes):
            assert self.graph_shard is not None
            given = inputs, self.graph_shard, self.nodes.weight, self.layers, self._mixing
            return propagate_sharded(*given, seed, self.checkpointed), inputs.rows
        if seed is not None:
            seed_device(self.device, seed)
        return self._propagate(inputs), inputs.outputs.rows

    def propagate(self, wanted: Tensor) -> Tensor:
        """[S, D + D1 + ...] vectors of the wanted nodes (int64 [S] on the host, distinct)."""
        return self._propagate(to_device(self._batch_nodes(wanted), self.device))

    def _propagate(self, nodes: BatchNodes) -> Tensor:
        x, outputs, vectors = self.nodes.block(0, len(self.nodes)), nodes.outputs, []
        *layers, last_layer = (cast(Layer, layer) for layer in self.layers)
        for number, layer in enumerate(layers, start=1):
            # the layer before the last computes only the nodes that the last one reads
            computed = nodes.last_inputs if number == len(layers) else None
            batch_rows, x = self.checkpointed(self._layer, layer, x, outputs, computed)
            vectors.append(batch_rows)
        given = last_layer, x, outputs, nodes.last_inputs
        vectors += self.checkpointed(self._last_layer, *given)
        return joined(vectors)

    def _batch_nodes(self, nodes: Tensor) -> BatchNodes:
        """What :meth:`propagate` reads for these nodes, prepared on the host."""
        assert self.graph is not None
        return BatchNodes.of(self.graph, nodes, len(self.layers))

    def _layer(
        self, layer: Layer, x: Tensor, batch: RowPositions, computed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The batch's nodes in x, and the layer's result at the nodes ``computed`` (None: all)."""
        assert self.graph is not None
        return aggregate(
            self.graph, self.edge_weights, x, batch.rows, layer.matrices, *self._mixing,
            rows=computed,
        )  # fmt: skip

    def _last_layer(
        self, layer: Layer, x: Tensor, batch: RowPositions, inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The batch's nodes before and after the layer. x: of the nodes ``inputs`` (None: all)."""
        assert self.graph is not None
        node_rows, neighbors = spmm_rows(self.graph, self.edge_weights, x, batch, among=inputs)
        return node_rows, mix(node_rows, neighbors, layer.matrices, *self._mixing)

    def own_vectors(self, part: GraphShard) -> Tensor:
        return sharded_vectors(part, self.nodes.weight, self.layers, self._mixing)

    @property
    def _mixing(self) -> Mixing:
        options = self.options
        return options.aggregator, options.slope, options.dropout if self.training else 0.0

    def all_vectors(self) -> Tensor:
        sizes = self.sizes
        users = torch.arange(sizes.entities, sizes.entities + sizes.users)
        return self.propagate(torch.cat([torch.arange(sizes.items), users]))

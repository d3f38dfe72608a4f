"""KGAT: recommendation with attention over interactions and a knowledge graph (Wang et al. 2019).

Nodes e⁰ [E + U, D] are entities and users. A layer aggregates the neighbors of every node,
``e_N = sum over (h, r, t) of π(h, r, t) e_t``, and combines them with the node itself:

- ``bi-interaction``: ``lrelu((e + e_N) W1 + b1) + lrelu((e ⊙ e_N) W2 + b2)``;
- ``gcn``: ``lrelu((e + e_N) W + b)``;  ``graphsage``: ``lrelu([e, e_N] W + b)``.

The next layer receives the result after dropout, without normalization. The vector of a node is
``[e⁰, e¹/‖e¹‖, e²/‖e²‖, ...]``, the score of a user and an item the inner product of their vectors.
Two phases alternate, each with its own optimizer over the shared nodes: pairs (BPR on the vectors)
and translation (TransR). After them the attention is recomputed without gradient: the softmax over
the edges of a head of ``(e_t W_r) · tanh(e_h W_r + e_r)``. Before that, the weight of an edge is 1
divided by the number of edges of its head and relation.

In training, the last layer is computed only for the nodes of the batch, and the layer before it for
these and their neighbors, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.config import ModelOptions, TrainingOptions
from hasten.data.tables import Dataset
from hasten.errors import CheckpointError
from hasten.models.collaborative.aggregate import Aggregator, aggregate, mix
from hasten.models.collaborative.base import NodeVectorModel
from hasten.models.collaborative.relation_attention import RelationEdges, relation_attention
from hasten.models.collaborative.segment_softmax import segment_softmax
from hasten.models.collaborative.translation_loss import translation_loss
from hasten.models.interface import Sizes
from hasten.models.rows import Rows
from hasten.models.search_space import Choice, Range
from hasten.models.supports import Supports
from hasten.objectives.base import Encoded, Phase
from hasten.objectives.pairwise import Pairs, Sampling
from hasten.objectives.translation import TranslationBatch, TranslationPhase
from hasten.ops.dense.normalized_rows import normalized_rows
from hasten.ops.dtypes import upcast
from hasten.ops.graph.best_paths import PathGraph
from hasten.ops.graph.collaborative_graph import CollaborativeGraph
from hasten.ops.graph.spmm import EdgeWeights, SparseGraph
from hasten.ops.graph.spmm_rows import RowPositions, spmm_rows, visits_all, with_neighbors
from hasten.ops.random import seed_device
from hasten.ops.table import EmbeddingTable
from hasten.ops.transfer import to_device

#: share of the nodes above which all nodes are computed: selecting them costs more than it saves
_MOST = 0.8


class KGATOptions(ModelOptions):
    """Options of KGAT."""

    name: Literal["kgat"] = "kgat"
    width: int = Field(64, ge=1, description="dimension D of entities and users")
    relation_width: int = Field(64, ge=1, description="dimension K of relations")
    layers: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (64,), min_length=1, description="width of each propagation layer (paper: 64,32,16)"
    )
    aggregator: Aggregator = Field(
        "bi-interaction", description="how a node and its neighbors are combined"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="dropout rate of messages"
    )
    slope: float = Field(0.2, ge=0, description="negative slope of the leaky ReLU")
    l2: float = Field(1e-5, ge=0, description="L2 penalty of the pairs' vectors")
    kg_l2: float = Field(1e-5, ge=0, description="L2 penalty of the translation phase")
    kg_batch_size: int | None = Field(
        None, ge=1, description="edges per step of the translation phase; none: twice batch_size"
    )
    sampling: Sampling = Field(
        "users", description="training pairs: users uniformly, or every interaction once per epoch"
    )


class Layer(nn.Module):
    """The matrices of one aggregation."""

    def __init__(self, width: int, out: int, aggregator: Aggregator) -> None:
        super().__init__()
        entering = 2 * width if aggregator == "graphsage" else width
        self.first = nn.Linear(entering, out)
        self.second = nn.Linear(entering, out) if aggregator == "bi-interaction" else None
        for linear in self._linears:
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    @property
    def _linears(self) -> list[nn.Linear]:
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def matrices(self) -> list[tuple[Tensor, Tensor]]:
        return [(linear.weight, linear.bias) for linear in self._linears]


@dataclass(frozen=True, eq=False)
class Wanted:
    """Nodes whose vectors are wanted. needed: int64, those that the last layer reads; None: all."""

    nodes: RowPositions
    needed: Tensor | None


class KGAT(NodeVectorModel):
    """The model. :meth:`phases` builds the graph from the data."""

    name = "kgat"
    summary = "graph attention over interactions and a knowledge graph (Wang et al. 2019)"
    reads = "facts"
    Options = KGATOptions
    defaults = {**NodeVectorModel.defaults, "lr": 2e-3}
    supports = Supports(recompute=True)
    search = {
        **NodeVectorModel.search,
        "model.layers": Choice("64", "64,32"),
        "model.dropout": Range(0.0, 0.4),
        "model.kg_l2": Range(1e-6, 1e-2, log=True),
    }

    options: KGATOptions

    def __init__(self, options: KGATOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        kinds = 2 * sizes.relations + 2
        self.nodes = EmbeddingTable(sizes.entities + sizes.users, options.width)
        self.relations = EmbeddingTable(kinds, options.relation_width)
        self.projections = nn.Parameter(torch.empty(kinds, options.width, options.relation_width))
        for matrix in self.projections.data:
            nn.init.xavier_normal_(matrix)
        widths = (options.width, *options.layers)
        self.layers = nn.ModuleList(
            Layer(width, out, options.aggregator) for width, out in pairwise(widths)
        )
        self.graph: SparseGraph | None = None

    def rows_of(self) -> Mapping[str, Rows]:
        kinds = Rows.of(2, "relations", "relations")
        nodes = Rows.of("entities", "users")
        return {"nodes.weight": nodes, "relations.weight": kinds, "projections": kinds}

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """Pairs, then translation. Builds the graph."""
        options = self.options
        ckg, device = CollaborativeGraph.of(dataset), self.nodes.weight.device
        self.recompute = training.recompute
        graph = SparseGraph.build(ckg.head, ckg.tail, ckg.nodes, ckg.nodes)
        self.graph = graph.to(device)
        self.edges = RelationEdges.build(ckg.head, ckg.relation, ckg.tail).to(device)
        self.set_attention(torch.from_numpy(ckg.normalized()))
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

    def adopt(self, weights: Mapping[str, Tensor]) -> bool:
        """Start from the users and items of a BPR-MF run on the same data (as published)."""
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
        """float32 [edges] weights of the edges, sorted by head."""
        return self.weights.values

    def set_attention(self, values: Tensor) -> None:
        assert self.graph is not None
        memory: EdgeWeights | None = getattr(self, "weights", None)
        self.weights = self.graph.weigh(values.to(self.nodes.weight.device), memory)

    def path_graph(self) -> PathGraph:
        """The graph with its attention; paths follow edges from head to tail."""
        assert self.graph is not None
        spans = self.edges.spans
        counts = torch.tensor([span.stop - span.start for span in spans])
        kinds = torch.tensor([span.relation for span in spans])
        kind = kinds.repeat_interleave(counts)[self.edges.position.cpu()]
        tail = self.graph.host_columns.long().numpy()
        weight = self.attention.cpu().double().numpy()
        return PathGraph(self.graph.bounds, tail, kind.numpy(), weight)

    @torch.no_grad()
    def refresh(self) -> None:
        """Recompute the attention from the weights."""
        assert self.graph is not None
        logits = relation_attention(
            self.edges, self.nodes.weight, self.relations.weight, self.projections
        )
        self.set_attention(segment_softmax(logits, self.graph.offsets))

    def translation(
        self, rows: Tensor, index: Tensor, batch: TranslationBatch
    ) -> tuple[Tensor, Tensor]:
        relation = self.relations.rows(batch.relation)
        return translation_loss(rows, index, relation, self.projections, batch.tiles or batch.sizes)

    @property
    def first_user(self) -> int:
        return self.sizes.entities

    def pair_inputs(self, pairs: Pairs) -> Wanted:
        return self._wanted(self.distinct(self.pair_nodes(pairs)))

    def row_graphs(self) -> Sequence[SparseGraph]:
        assert self.graph is not None
        return [self.graph]

    def encode_pairs(self, inputs: Wanted, seed: int | None) -> Encoded:
        """Vectors of the nodes of a batch [S, ...], and these nodes, ascending."""
        if seed is not None:
            seed_device(self.device, seed)
        return self._propagate(inputs), inputs.nodes.rows

    def propagate(self, wanted: Tensor) -> Tensor:
        """[S, D + D1 + ...] vectors of the wanted nodes (int64 [S] on the host, distinct)."""
        return self._propagate(to_device(self._wanted(wanted), self.device))

    def _propagate(self, requested: Wanted) -> Tensor:
        x = self.nodes.block(0, len(self.nodes))
        layers: list[Tensor] = []
        for left in reversed(range(len(self.layers))):
            layer = cast(Layer, self.layers[~left])
            # the layer before the last computes the nodes that the last one reads
            rows = requested.needed if left <= 1 else None
            function = self._last if left == 0 else self._layer
            layer_rows, x = self.checkpointed(function, layer, x, requested.nodes, rows)
            layers.append(layer_rows)
        first, *later_layers = (upcast(rows) for rows in (*layers, x))
        unit = F.normalize if first.device.type == "cpu" else lambda x: normalized_rows([x])
        return torch.cat([first, *map(unit, later_layers)], dim=1)

    def _wanted(self, nodes: Tensor) -> Wanted:
        """What :meth:`propagate` needs of these nodes, on the host."""
        assert self.graph is not None
        return Wanted(RowPositions.of(self.graph, nodes), self._needed(nodes))

    def _needed(self, nodes: Tensor) -> Tensor | None:
        """The nodes that the last layer reads; None: all, or nearly all."""
        assert self.graph is not None
        many = len(nodes) > _MOST * len(self.nodes)
        if len(self.layers) == 1 or many or visits_all(self.graph):
            return None
        needed = with_neighbors(self.graph, nodes)
        return None if len(needed) > _MOST * len(self.nodes) else needed

    def _layer(
        self, layer: Layer, x: Tensor, wanted: RowPositions, needed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The wanted rows of x, and a layer for the needed nodes; None: all."""
        assert self.graph is not None
        return aggregate(
            self.graph, self.weights, x, wanted.rows, layer.matrices, *self._mixing, rows=needed
        )

    def _last(
        self, layer: Layer, x: Tensor, wanted: RowPositions, needed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The wanted rows of x, and a layer for these nodes. x: the rows of the needed nodes."""
        assert self.graph is not None
        node_rows, neighbors = spmm_rows(self.graph, self.weights, x, wanted, among=needed)
        return node_rows, mix(node_rows, neighbors, layer.matrices, *self._mixing)

    @property
    def _mixing(self) -> tuple[Aggregator, float, float]:
        options = self.options
        return options.aggregator, options.slope, options.dropout if self.training else 0.0

    def all_vectors(self) -> Tensor:
        sizes = self.sizes
        users = torch.arange(sizes.entities, sizes.entities + sizes.users)
        return self.propagate(torch.cat([torch.arange(sizes.items), users]))

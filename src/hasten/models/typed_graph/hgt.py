"""HGT: node embeddings of a typed graph (Hu et al. 2020, "Heterogeneous graph transformer").

The input of a node is a vector of its own, or its given features through a linear map of its type.
Layers of typed attention over its neighbors follow (:mod:`.hgt_layer`; links pass messages in both
directions), then a linear map to the width of its embedding z. The score of a link (h, r, t) is

- ``distmult``: ``sum of z_h · w_r · z_t / sqrt(D) + b_r`` (Yang et al. 2015);
- ``dot``: ``z_h · z_t / sqrt(D) + b_r``.

With ``shallow_width``, z ends with a second embedding of the node (:mod:`.shallow`). Products of
vectors hardly express that similar nodes are linked, but no node with itself: so with
``exclude_self`` a node is no answer to itself, for relations without such links in training; with
``self_score``, its score with itself has one more term c_r.
The factor 1 / sqrt(D) is our deviation: without it, initial scores reach ±10. Training uses links
and similar nodes (:mod:`hasten.objectives.links`). With ``inputs=constant`` all nodes of a type
have the same input, so nodes whose neighbors have the same types get the same vector; the embedding
diagnostics of a run show this collapse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.config import TrainingOptions
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import KnowledgeGraph
from hasten.models.interface import Model, Sizes
from hasten.models.knowledge_graph.base import METRICS
from hasten.models.rows import Rows
from hasten.models.self_links import self_link_scores
from hasten.models.supports import Supports
from hasten.models.typed_graph import hgt_defaults
from hasten.models.typed_graph.hgt_blocks import attend_in_blocks, blocks
from hasten.models.typed_graph.hgt_layer import HGTLayer
from hasten.models.typed_graph.hgt_options import HGTOptions, require_neighborhoods
from hasten.models.typed_graph.hgt_rows import hgt_rows
from hasten.models.typed_graph.input_rows import input_rows
from hasten.models.typed_graph.layer_norm import Norms, norms_of_layers, typed_layer_norm
from hasten.models.typed_graph.shallow import shallow_embeddings, with_shallow
from hasten.models.typed_graph.similar_nodes import contrast_of
from hasten.objectives.base import Phase
from hasten.objectives.links import LinkPhase
from hasten.ops.dense.dropout import dropout
from hasten.ops.dense.linear import LinearMap
from hasten.ops.dense.product import padded_rows
from hasten.ops.dtypes import autocast_dtype, upcast
from hasten.ops.graph.edge_pairs import EdgePairs
from hasten.ops.graph.message_graph import Hop, MessageGraph
from hasten.ops.graph.typed_edges import TypedEdges
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import FixedTable, gathered_rows
from hasten.ops.transfer import to_device
from hasten.scoring import Catalog, FactorScorer, TripleQueries, with_self_score

#: nodes per block in inference
BLOCK = 1 << 14
#: makes self-scores reach ±10 in a few hundred steps of Adam
SELF_SCALE = 10.0
#: messages that pass; the hop of the last layer; the rows of the shallow embeddings. None: all
WholeInputs = tuple[Tensor, Hop | None, Tensor | None]
SomeInputs = tuple[list[Tensor], list[Hop], Tensor]


class HGT(Model):
    """The model. :meth:`attach` builds its graph from the data."""

    name = "hgt"
    summary = "heterogeneous graph transformer (Hu et al. 2020)"
    reads = "typed_graph"
    Options = HGTOptions
    defaults = {"batch_size": 5000, "lr": 3e-3, "schedule": "cosine", "evaluation.metrics": METRICS}
    defaults_from_data, search = hgt_defaults.FROM_DATA, hgt_defaults.SEARCH
    sample = "medicine"
    supports = Supports(recompute=True)

    options: HGTOptions
    excluded_selves: Tensor | None
    defaults_for = staticmethod(hgt_defaults.defaults_for)

    def __init__(self, options: HGTOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        types = len(sizes.node_types)
        rows = sizes.entities if options.inputs == "embeddings" else types
        # widths of given features by type, 0 for types without them
        self.given = sizes.node_features if options.inputs == "features" else ()
        if self.given:
            rows = sum(n for n, w in zip(sizes.node_types, self.given, strict=True) if not w)
        self.inputs = nn.Parameter(torch.empty(rows, options.hidden).normal_(std=0.1))
        self.feature_maps = nn.ModuleDict(
            {str(t): nn.Linear(w, options.hidden) for t, w in enumerate(self.given) if w}
        )
        self.layers = nn.ModuleList(
            HGTLayer(types, 2 * sizes.relations, options.hidden, options.hidden, options.heads)
            for _ in range(options.layers)
        )
        shape = (options.layers, types, options.hidden)
        self.gains = nn.Parameter(torch.ones(shape)) if options.norm else None
        self.shifts = nn.Parameter(torch.zeros(shape)) if options.norm else None
        self.result = LinearMap(options.hidden, options.width - options.shallow_width)
        self.shallow = shallow_embeddings(sizes.entities, options.shallow_width)
        self.relations: nn.Parameter | None = None
        if options.decoder == "distmult":
            weights = torch.ones(sizes.relations, options.width)
            if options.relation_weights == "normal":
                weights += torch.randn_like(weights)
            self.relations = nn.Parameter(weights)
        self.bias = nn.Parameter(torch.zeros(sizes.relations))
        #: self-scores divided by :data:`SELF_SCALE`
        self.selves = nn.Parameter(torch.zeros(sizes.relations)) if options.self_score else None
        self.register_buffer("excluded_selves", None, persistent=False)
        self._graph: MessageGraph | None = None
        self._encoded: Tensor | None = None

    def rows_of(self) -> Mapping[str, Rows]:
        return hgt_rows(self.state_dict(), self.options.inputs, bool(self.given))

    @property
    def graph(self) -> MessageGraph:
        """The messages of the training part."""
        assert self._graph is not None, "call attach first"
        return self._graph

    def attach(self, dataset: KnowledgeGraph) -> None:
        """Take the messages and the node features of the data."""
        require_neighborhoods(self.options, dataset)
        self._graph = MessageGraph.of(dataset)
        if self.options.exclude_self:
            self.excluded_selves = self_link_scores(dataset)[: self.sizes.relations]
        for number, each in dataset.features if self.given else ():
            values = torch.from_numpy(each.values).to(self.result.weight)
            self.register_buffer(f"features_{number}", values, persistent=False)

    def phases(self, dataset: KnowledgeGraph, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: links, and similar nodes if ``contrastive_weight`` is not 0."""
        options = self.options
        if self._graph is None:
            self.attach(dataset)
        self.recompute = training.recompute
        sampling = options.sampling(training.batch_size, self.excluded_selves)
        return [LinkPhase(self, self.graph, sampling, contrast_of(options, dataset, self.graph))]

    @cached_property
    def _edges(self) -> TypedEdges | EdgePairs:
        return self.graph.whole().to(self.device)

    @cached_property
    def _all_rows(self) -> Sequence[Tensor]:
        return to_device(self._rows(np.arange(self.graph.nodes)), self.device)

    def _rows(self, nodes: Int64) -> list[Tensor]:
        table = self.options.inputs == "embeddings"
        return input_rows(self.graph.types, nodes, self.given, embeddings=table)

    def _inputs(self, rows: Sequence[Tensor] | None) -> Tensor:
        """[S, hidden] the inputs of nodes from :func:`input_rows`; None: of all."""
        if rows is None:
            if self.options.inputs == "embeddings":
                return self.inputs
            rows = self._all_rows
        if not self.given:
            return self.inputs.index_select(0, rows[0])
        parts = []
        for t, (width, index) in enumerate(zip(self.given, rows, strict=True)):
            table = self.get_buffer(f"features_{t}") if width else self.inputs
            part = table.index_select(0, index)
            parts.append(self.feature_maps[str(t)](part) if width else part)
        return torch.cat([part.to(self.inputs.dtype) for part in parts])

    def _layers(self) -> Sequence[tuple[HGTLayer, Norms]]:
        """Every layer, and its layer norm."""
        layers = [cast(HGTLayer, each) for each in self.layers]
        return list(zip(layers, norms_of_layers(len(layers), self.gains, self.shifts), strict=True))

    def _after(self, norms: Norms, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Layer norm, activation and dropout after a layer of attention."""
        x = typed_layer_norm(norms, x, sizes)
        if self.options.activation == "relu":
            x = torch.relu(x)
        return F.dropout(x, self.options.dropout, self.training)

    def _layer(
        self,
        layer: tuple[HGTLayer, Norms],
        edges: TypedEdges | EdgePairs,
        x: Tensor,
        sizes: Sequence[int],
        own: Tensor | None,
        own_sizes: Sequence[int] | None,
        keep: Tensor | None,
    ) -> Tensor:
        """One layer of attention, then layer norm, activation and dropout."""

        def compute(x: Tensor, own: Tensor | None) -> Tensor:
            mapped = layer[0](edges, x, sizes, own, own_sizes, keep)
            return self._after(layer[1], mapped, sizes if own_sizes is None else own_sizes)

        result: Tensor = self.checkpointed(compute, x, own)
        return result

    def whole_inputs(self, wanted: Int64 | None, scored: NDArray[np.bool_]) -> WholeInputs:
        """Bool [E], the messages that pass, and the hop of the last layer, if not of all nodes."""
        hop = None if wanted is None else self.graph.hop(wanted, scored, everything=True)
        rows = None if wanted is None else torch.from_numpy(wanted)
        return torch.from_numpy(~scored[self.graph.link]), hop and hop.arranged(self.device), rows

    def encode_all(self, inputs: WholeInputs) -> Tensor:
        """[S, width] with all nodes in all layers but the last, which only has the wanted nodes."""
        keep, hop, rows = inputs
        x, sizes, layers = self._inputs(None), self.graph.types.sizes.tolist(), self._layers()
        for layer in layers if hop is None else layers[:-1]:
            x = self._layer(layer, self._edges, x, sizes, None, None, keep)
        return self._finish(x if hop is None else self._hop(layers[-1], hop, x), rows)

    def some_inputs(
        self, wanted: Int64, scored: NDArray[np.bool_], fan_out: int | None, seed: int
    ) -> SomeInputs:
        """The rows of the first sources, the hops of all layers, and the wanted nodes."""
        hops = self.graph.hops(wanted, len(self.layers), scored, fan_out, seed)
        arranged = [each.arranged(self.device) for each in hops]
        return self._rows(hops[0].sources), arranged, torch.from_numpy(wanted)

    def encode_some(self, inputs: SomeInputs) -> Tensor:
        """[S, width] from the neighborhoods of the wanted nodes."""
        rows, hops, wanted = inputs
        x = self._inputs(rows)
        for layer, hop in zip(self._layers(), hops, strict=True):
            x = self._hop(layer, hop, x)
        return self._finish(x, wanted)

    def _hop(self, layer: tuple[HGTLayer, Norms], hop: Hop, x: Tensor) -> Tensor:
        """A layer for the targets of a hop, from its sources."""
        targets = x.index_select(0, hop.own)
        return self._layer(layer, hop.edges, x, hop.sizes, targets, hop.own_sizes, None)

    def _finish(self, x: Tensor, rows: Tensor | slice | None) -> Tensor:
        """[S, width] embeddings from the output of the layers. rows: the nodes; None: all."""
        z = upcast(self.result(padded_rows(x.to(autocast_dtype(x))))[: len(x), :])
        z, rate = with_shallow(z, self.shallow, rows), self.options.output_dropout
        return F.dropout(z, rate) if rate and self.training else z

    def queries(self, vectors: Tensor, relation: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.relations is not None:
            vectors = vectors * gathered_rows(self.relations, relation).to(vectors.dtype)
        vectors = dropout(vectors, self.options.query_dropout, self.training)
        return vectors * self._scale, self.bias[relation], self.self_scores(relation)

    def self_scores(self, relation: Tensor) -> Tensor | None:
        if self.excluded_selves is not None:
            return self.excluded_selves[relation]
        return None if self.selves is None else self.selves[relation] * SELF_SCALE

    @property
    def _scale(self) -> float:
        return float(self.options.width**-0.5)

    @torch.no_grad()
    def embed(self, block: int = BLOCK) -> Tensor:
        """[N, width] embeddings of all nodes, layer by layer, ``block`` nodes at a time."""
        graph, x, ranges = self.graph, self._inputs(None), blocks(self.graph.nodes, block)
        for layer, norms in self._layers():
            parts = attend_in_blocks(layer, graph, x, ranges)
            x = torch.cat([self._after(norms, part, sizes) for part, sizes in parts])
        return torch.cat([self._finish(x[each], each) for each in ranges])

    @contextmanager
    def encoded_once(self) -> Iterator[None]:
        self._encoded = self.embed()
        try:
            yield
        finally:
            self._encoded = None

    def diagnosed_embeddings(self) -> tuple[Tensor, NodeTypes]:
        """[N, width] embeddings of all nodes, and their types."""
        return self.embed() if self._encoded is None else self._encoded, self.graph.types

    def scorer(self, queries: TripleQueries) -> Scorer:
        """Scores of all nodes; a query for heads has the score of the query for tails."""
        vectors, _ = self.diagnosed_embeddings()
        ids = queries.entity, queries.relation % self.sizes.relations
        entity, relation = to_device(tuple(map(torch.from_numpy, ids)), vectors.device)
        query = vectors.index_select(0, entity) * self._scale
        if self.relations is not None:
            query = query * self.relations.index_select(0, relation)
        # the same for all candidates, but metrics that compare queries need it
        bias = self.bias.index_select(0, relation)
        scorer = FactorScorer(query, Catalog(FixedTable(vectors)), bias)
        return with_self_score(scorer, entity, self.self_scores(relation))

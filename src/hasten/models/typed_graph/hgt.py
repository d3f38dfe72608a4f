"""HGT: node embeddings of a typed graph (Hu et al. 2020, "Heterogeneous graph transformer").

The input of a node is a vector of its own, or its given features through a linear map of its type.
Layers of typed attention over its neighbors follow (:mod:`.hgt_layer`; links pass messages in both
directions), then a linear map to the width of its embedding z. The score of a link (h, r, t) is

- ``distmult``: ``sum of z_h · w_r · z_t / sqrt(D) + b_r`` (Yang et al. 2015);
- ``dot``: ``z_h · z_t / sqrt(D) + b_r``.

The factor 1 / sqrt(D) is our deviation: without it, initial scores reach ±10. Training uses links
and similar nodes (:mod:`hasten.objectives.links`). With ``inputs=constant`` all nodes of a type
have the same input, so nodes whose neighbors have the same types get the same vector; the embedding
diagnostics of a run show this collapse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.config import RunConfig, TrainingOptions
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import KnowledgeGraph
from hasten.models.data_size import LENGTH, DataSize, run_length
from hasten.models.interface import Model, Sizes
from hasten.models.knowledge_graph.base import METRICS
from hasten.models.supports import Supports
from hasten.models.typed_graph.hgt_layer import HGTLayer
from hasten.models.typed_graph.hgt_options import HGTOptions
from hasten.models.typed_graph.similar_nodes import similar_nodes
from hasten.objectives.base import Phase
from hasten.objectives.contrastive import Similar
from hasten.objectives.link_sampling import LinkSampling
from hasten.objectives.links import LinkPhase
from hasten.ops.dense.linear import LinearMap
from hasten.ops.dense.product import padded_rows
from hasten.ops.dtypes import autocast_dtype, upcast
from hasten.ops.graph.message_graph import MessageGraph
from hasten.ops.graph.typed_edges import TypedEdges
from hasten.ops.random import seed_device
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import FixedTable
from hasten.scoring import Catalogue, FactorScorer, TripleQueries

#: nodes per block in inference
BLOCK = 1 << 14
_FAN_OUT = 8


class HGT(Model):
    """The model. :meth:`attach` builds its graph from the data."""

    name = "hgt"
    summary = "heterogeneous graph transformer (Hu et al. 2020)"
    reads = "typed_graph"
    Options = HGTOptions
    defaults = {"batch_size": 5000, "lr": 3e-3, "schedule": "cosine", "evaluation.metrics": METRICS}
    defaults_from_data = LENGTH
    sample = "medicine"
    supports = Supports(recompute=True)

    options: HGTOptions

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """30 epochs, and up to 60 of a small graph."""
        return run_length(config, size.triples, 600, (30, 60))

    def __init__(self, options: HGTOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        types = len(sizes.node_types)
        rows = sizes.entities if options.inputs == "embeddings" else types
        #: widths of given features by type, 0 for types without them
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
        self.result = LinearMap(options.hidden, options.width)
        distmult = options.decoder == "distmult"
        self.relations = (
            nn.Parameter(torch.ones(sizes.relations, options.width)) if distmult else None
        )
        self.bias = nn.Parameter(torch.zeros(sizes.relations))
        self._graph: MessageGraph | None = None
        self._encoded: Tensor | None = None

    @property
    def graph(self) -> MessageGraph:
        """The messages of the training part."""
        assert self._graph is not None, "call attach first"
        return self._graph

    def attach(self, dataset: KnowledgeGraph) -> None:
        """Take the messages and the node features of the data."""
        self._graph = MessageGraph.of(dataset)
        if self.given:
            for number, each in dataset.features:
                values = torch.from_numpy(each.values).to(self.result.weight)
                self.register_buffer(f"features_{number}", values, persistent=False)

    def phases(self, dataset: KnowledgeGraph, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: links, and similar nodes if ``contrastive_weight`` is not 0."""
        options = self.options
        if self._graph is None:
            self.attach(dataset)
        self.recompute = training.recompute
        fan_out = options.fan_out
        if options.mode == "neighbors" and fan_out is None:
            fan_out = _FAN_OUT
        sampling = LinkSampling(
            options.mode,
            training.batch_size,
            options.scored_share,
            options.steps_per_epoch,
            options.negatives,
            fan_out,
            options.loss,
        )
        contrast = None
        if options.contrastive_weight:
            first, rows = similar_nodes(
                dataset,
                self.graph,
                options.contrastive_type,
                options.contrastive_relations,
                options.similarity_threshold,
            )
            contrast = Similar(
                first, rows, options.contrastive_weight, options.temperature,
                options.contrastive_batch, options.contrastive_batch,
            )  # fmt: skip
        return [LinkPhase(self, self.graph, sampling, contrast)]

    @cached_property
    def _edges(self) -> TypedEdges:
        return self.graph.whole().to(self.device)

    def _inputs(self, nodes: Int64 | None) -> Tensor:
        """[S, hidden] the inputs of some nodes (ascending), or of all."""
        if self.options.inputs == "embeddings":
            if nodes is None:
                return self.inputs
            return self.inputs.index_select(0, torch.from_numpy(nodes).to(self.device))
        types = self.graph.types
        if self.given:
            nodes = np.arange(self.graph.nodes) if nodes is None else nodes
            return self._of_features(nodes)
        sizes = types.sizes if nodes is None else np.array(self.graph.sizes(nodes))
        kind = torch.from_numpy(np.repeat(np.arange(len(types)), sizes))
        return self.inputs.index_select(0, kind.to(self.device))

    def _of_features(self, nodes: Int64) -> Tensor:
        """[S, hidden]: mapped features, or own vectors in types without features."""
        bounds = np.searchsorted(nodes, self.graph.types.offsets)
        found, own = [], 0
        for t, (width, offset) in enumerate(
            zip(self.given, self.graph.types.offsets, strict=False)
        ):
            index = torch.from_numpy(nodes[bounds[t] : bounds[t + 1]] - offset).to(self.device)
            if width:
                rows = self.get_buffer(f"features_{t}").index_select(0, index)
                found.append(self.feature_maps[str(t)](rows))
            else:
                found.append(self.inputs.index_select(0, index + own))
                own += self.sizes.node_types[t]
        return torch.cat([part.to(self.inputs.dtype) for part in found])

    def _after(self, number: int, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Layer norm, activation and dropout after a layer of attention."""
        if self.gains is not None and self.shifts is not None:
            gain, shift = (p[number].to(x.dtype) for p in (self.gains, self.shifts))
            parts = zip(torch.split(x, list(sizes)), gain, shift, strict=True)
            x = torch.cat([F.layer_norm(part, part.shape[1:], g, s) for part, g, s in parts])
        if self.options.activation == "relu":
            x = torch.relu(x)
        return F.dropout(x, self.options.dropout, self.training)

    def _layer(
        self,
        number: int,
        edges: TypedEdges,
        x: Tensor,
        sizes: Sequence[int],
        own: Tensor | None,
        own_sizes: Sequence[int] | None,
        keep: Tensor | None,
    ) -> Tensor:
        """One layer of attention, then layer norm, activation and dropout."""

        def compute(x: Tensor, own: Tensor | None) -> Tensor:
            layer = cast(HGTLayer, self.layers[number])
            found = layer(edges, x, sizes, own, own_sizes, keep)
            return self._after(number, found, sizes if own_sizes is None else own_sizes)

        result: Tensor = self.checkpointed(compute, x, own)
        return result

    def encode_all(self, wanted: Int64, scored: NDArray[np.bool_], seed: int) -> Tensor:
        """[S, width] with all nodes in all layers but the last, which only has the wanted nodes."""
        seed_device(self.device, seed)
        sizes = self.graph.sizes(np.arange(self.graph.nodes))
        keep = torch.from_numpy(~scored[self.graph.link]).to(self.device)
        x = self._inputs(None)
        last = len(self.layers) - 1
        for number in range(last):
            x = self._layer(number, self._edges, x, sizes, None, None, keep)
        hop = self.graph.hop(wanted, scored, everything=True)
        own = x.index_select(0, torch.from_numpy(wanted).to(x.device))
        x = self._layer(last, hop.edges.to(x.device), x, sizes, own, hop.own_sizes, None)
        return self._finish(x)

    def encode_some(
        self, wanted: Int64, scored: NDArray[np.bool_], fan_out: int | None, seed: int
    ) -> Tensor:
        """[S, width] from the neighborhoods of the wanted nodes."""
        hops = self.graph.hops(wanted, len(self.layers), scored, fan_out, seed)
        x = self._inputs(hops[0].sources)
        for number, hop in enumerate(hops):
            own = x.index_select(0, torch.from_numpy(hop.own).to(x.device))
            edges = hop.edges.to(x.device)
            x = self._layer(number, edges, x, hop.sizes, own, hop.own_sizes, None)
        return self._finish(x)

    def _finish(self, x: Tensor) -> Tensor:
        found: Tensor = self.result(padded_rows(x.to(autocast_dtype(x))))
        return upcast(found[: len(x), :])

    def queries(self, vectors: Tensor, relation: int) -> tuple[Tensor, Tensor]:
        if self.relations is not None:
            vectors = vectors * self.relations[relation].to(vectors.dtype)
        return vectors * self._scale, self.bias[relation]

    @property
    def _scale(self) -> float:
        return float(self.options.width**-0.5)

    @torch.no_grad()
    def embed(self, block: int = BLOCK) -> Tensor:
        """[N, width] embeddings of all nodes, layer by layer, ``block`` nodes at a time."""
        graph, x = self.graph, self._inputs(None)
        nodes = np.arange(graph.nodes)
        sizes = graph.sizes(nodes)
        for number, each in enumerate(self.layers):
            layer = cast(HGTLayer, each)
            keys, values = layer.key(x, sizes), layer.value(x, sizes)
            found = []
            for start in range(0, graph.nodes, block):
                targets = nodes[start : start + block]
                hop = graph.hop(targets, everything=True)
                own = x[start : start + block]
                queries = layer.query(own, hop.own_sizes)
                part = layer.attend(
                    hop.edges.to(x.device), own, hop.own_sizes, queries, keys, values
                )
                found.append(self._after(number, part, hop.own_sizes))
            x = torch.cat(found)
        return torch.cat([self._finish(x[s : s + block]) for s in range(0, graph.nodes, block)])

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
        vectors = self.embed() if self._encoded is None else self._encoded
        entity = torch.from_numpy(queries.entity).to(vectors.device)
        relation = torch.from_numpy(queries.relation % self.sizes.relations).to(vectors.device)
        query = vectors.index_select(0, entity) * self._scale
        if self.relations is not None:
            query = query * self.relations.index_select(0, relation)
        # the same for all candidates, but metrics that compare queries need it
        bias = self.bias.index_select(0, relation)
        return FactorScorer(query, Catalogue(FixedTable(vectors)), bias)

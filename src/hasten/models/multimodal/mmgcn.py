"""MMGCN: one graph network per modality over users and items (Wei et al. 2019).

For a modality with features F [N, d] and users P [U, d0], with ``F' = F M + m`` (width d0) if the
modality is projected, otherwise F itself:

    X⁰ = [F'; P] with l2-normalized rows;   per layer
    H  = lrelu(D⁻¹ A X W),   X̂ = lrelu(X V + b) + E,   X ← lrelu([H, X̂] G + c)

with the id embeddings E [N + U, D], which all modalities share. The vector of a node is the mean of
its last layers over the modalities, the score of a user and an item the inner product of their
vectors. The loss is BPR, computed as ``softplus(negative - positive)``.

Aggregation and matrix product are done in the cheaper order, constants are computed once, and the
last layer is computed only for the nodes of the batch, all with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from hasten.config import ModelOptions, OnlyWith, RunConfig
from hasten.models.data_size import DataSize
from hasten.models.interface import Sizes
from hasten.models.multimodal.base import FEATURE_DEFAULTS, MultimodalModel
from hasten.models.multimodal.mmgcn_layer import Layer, StackedLayer, joined, mix_layer, split
from hasten.models.multimodal.modal_data import (
    chosen_modalities,
    features_of,
    training_pairs,
    xavier,
)
from hasten.models.search_space import Choice, Range
from hasten.models.supports import Supports
from hasten.objectives.base import Encoded
from hasten.objectives.pairwise import PairwiseExamples
from hasten.ops.dense.linear import LinearMap, linear
from hasten.ops.dense.normalized_rows import normalized_rows
from hasten.ops.dtypes import upcast
from hasten.ops.graph.bipartite import Bipartite, WeightedGraph
from hasten.ops.graph.spmm import SparseGraph
from hasten.ops.graph.spmm_rows import RowEntries, RowPositions, row_sums

Order = Literal["aggregate first", "multiply first"]
#: operations of a matrix product in the time of summing one element of a neighbor, on a CPU
_ELEMENT = 16


class MMGCNOptions(ModelOptions):
    """Options of MMGCN. The defaults are those of published runs."""

    name: Literal["mmgcn"] = "mmgcn"
    width: int = Field(64, ge=1, description="embedding dimension D, and the width of the layers")
    layers: int = Field(3, ge=1, le=1000, description="number of propagation layers")
    ids: Literal["trainable", "frozen"] = Field(
        "frozen",
        description="ID and user embeddings: kept at their random initialization as in the public "
        "code, or trained as in the paper",
    )
    modalities: tuple[str, ...] | None = Field(
        None, min_length=1, description="modalities to use, in this order; none: all"
    )
    projected: tuple[str, ...] = Field(
        ("image", "vision", "visual"),
        description="modalities that are projected to model.latent first",
    )
    latent: int = Field(256, ge=1, description="width of projected modalities")
    l2: Annotated[float | None, OnlyWith("ids", "trainable")] = Field(
        None, ge=0, description="L2 penalty of trained ids (published: 0 to 0.1); none: 1e-4"
    )


def cheaper_order(rows: int, columns: int, entries: int, width: int, *, constant: bool) -> Order:
    """The order of ``A X W`` with fewer operations, forward and backward, for W [width, width].

    rows, columns, entries: of A; constant: X has no gradient, so that ``A X`` is computed once for
    all steps and not counted. Otherwise both orders sum the same number of elements.
    """
    products = 2 if constant else 3
    sums = _ELEMENT * entries if constant else 0
    first = (rows - columns) * products * width <= sums
    return "aggregate first" if first else "multiply first"


class Channel(nn.Module):
    """The parameters of one modality: users P [U, d0], the projection, the layers."""

    def __init__(self, name: str, width: int, options: MMGCNOptions, sizes: Sizes) -> None:
        super().__init__()
        latent = options.latent if name in options.projected else None
        self.modality, self.entering = name, latent or width
        self.project = None if latent is None else LinearMap(width, latent)
        users = xavier(sizes.users, self.entering)
        if options.ids == "trainable":
            self.users: Tensor = users
        else:
            self.register_buffer("users", users.data)
        widths = [self.entering] + [options.width] * (options.layers - 1)
        self.layers = nn.ModuleList(
            Layer(entering, options.width, not number) for number, entering in enumerate(widths)
        )


class MMGCN(MultimodalModel):
    """The model."""

    name = "mmgcn"
    summary = "one graph network per modality of item features (Wei et al. 2019)"
    Options = MMGCNOptions
    defaults = {**FEATURE_DEFAULTS, "lr": 1e-3, "evaluation.metrics": ("recall@20", "ndcg@10")}
    supports = Supports(recompute=True, compile=True)
    search = {
        "training.lr": Range(1e-4, 5e-3, log=True),
        "training.batch_size": Choice(512, 1024, 2048),
        "model.width": Choice(32, 64, 128),
        "model.layers": Choice(1, 2, 3),
        "model.ids": Choice("frozen", "trainable"),
        "model.l2": Range(1e-6, 1e-1, log=True),
    }

    options: MMGCNOptions

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """As the base class, but evaluated after every epoch: they vary, in NDCG most."""
        often = {"evaluation.every": 1, "training.patience": "20 evaluations"}
        return super().defaults_for(size, config) | (often if size.validated else {})

    def __init__(self, options: MMGCNOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        modalities = chosen_modalities(options.modalities, sizes)
        self.channels = nn.ModuleList(
            Channel(name, width, options, sizes) for name, width in modalities
        )
        ids = xavier(sizes.items + sizes.users, options.width)
        if options.ids == "trainable":
            self.ids: Tensor = ids
        else:
            self.register_buffer("ids", ids.data)
        self._mix: Callable[..., Tensor] = mix_layer
        #: order of aggregation and product in the first layer (for tests); None: the cheaper
        self.order: Order | None = None
        self._graph: Bipartite | None = None

    @property
    def l2(self) -> float:
        """The weight of the regularizers in effect."""
        if self.options.ids == "frozen":
            return 0.0
        return 1e-4 if self.options.l2 is None else self.options.l2

    def reset_graphs(self) -> None:
        self._graph = None

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Compile :func:`mix_layer` of whole layers, whose shapes never change."""
        self._mix = wrap(mix_layer)
        return True

    def pair_inputs(self, pairs: PairwiseExamples) -> RowPositions:
        nodes = self.distinct(self.pair_nodes(pairs))
        return RowPositions.of(self.graph.adjacency.structure, nodes)

    def row_graphs(self) -> Sequence[SparseGraph]:
        return [self.graph.adjacency.structure]

    def encode_pairs(self, inputs: RowPositions, seed: int | None) -> Encoded:
        """Vectors of the nodes of a batch [S, D], and these nodes, ascending."""
        return self.propagate(inputs), inputs.rows

    def pair_penalty(self, pairs: PairwiseExamples) -> Tensor:
        """The mean of E²[u] + E²[i] over the 2B pairs (user, positive) and (user, negative)."""
        rows = self.ids.index_select(0, self.pair_nodes(pairs))
        user, positive, negative = rows.square().sum(1).chunk(3)
        return (2 * user + positive + negative).sum() / (2 * self.ids.shape[1])

    def global_penalty(self) -> Tensor:
        """The mean square of the users of the first modality."""
        return cast(Channel, self.channels[0]).users.square().mean()

    def all_vectors(self) -> Tensor:
        return self.propagate(None)

    @property
    def graph(self) -> Bipartite:
        """The training pairs, each edge weighted by 1 / degree of its target."""
        if self._graph is None:
            with torch.inference_mode(False):
                pairs = training_pairs(self._dataset)
                self._graph = Bipartite.build(pairs, self.sizes.items, "mean").to(self.ids)
        return self._graph

    def propagate(self, wanted: RowPositions | None) -> Tensor:
        """[S, D] vectors of the wanted nodes; None: all."""
        whole = self.graph.adjacency
        last = None if wanted is None else RowEntries.of(whole.structure, whole.weights, wanted)
        if self.device.type != "cpu" and len(self.channels) > 1 and self.options.layers > 1:
            outputs = self._at_once(last)
        else:
            outputs = [self.checkpointed(self._channel, channel, last) for channel in self.channels]
        total: Tensor = reduce(torch.add, map(upcast, outputs))
        return total / len(self.channels)

    def _at_once(self, last: RowEntries | None) -> Sequence[Tensor]:
        """[S, D] of each modality; after the first layer by common launches."""
        channels = cast(Sequence[Channel], self.channels)
        first = (self.checkpointed(self._first, each, each.layers[0]) for each in channels)
        outputs: Tensor = self.checkpointed(self._later, torch.cat(list(first), 1), last)
        return outputs.unbind()

    def _later(self, x: Tensor, last: RowEntries | None) -> Tensor:
        """[M, S, D] all modalities after their last layer. x: [N + U, M D] after the first."""
        channels, own_ids = cast(Sequence[Channel], self.channels), self.ids
        for number in range(1, self.options.layers):
            layer = StackedLayer.of([cast(Layer, each.layers[number]) for each in channels])
            is_last = number == self.options.layers - 1
            if is_last and last is not None:
                x, aggregated = row_sums(last, x)
                own_ids = self.ids.index_select(0, last.own)
            else:
                aggregated = self.graph.adjacency @ x
            summed = split(aggregated, len(channels)) @ layer.spread.mT
            mixed = mix_layer(summed, layer.own(split(x, len(channels))), own_ids, layer)
            x = mixed if is_last else joined(mixed)
        return x

    def _channel(self, channel: Channel, last: RowEntries | None) -> Tensor:
        """[S, D] the last layer of one modality, for the rows of these entries."""
        layers = cast(Sequence[Layer], channel.layers)
        x = self._first(channel, layers[0])
        for number, layer in enumerate(layers[1:], 2):
            if number == len(layers) and last is not None:
                x, aggregated = row_sums(last, x)
                ids = self.ids.index_select(0, last.own)
                summed = linear(aggregated, layer.spread, varying=True)
                node_rows = linear(x, layer.own.weight, layer.own.bias, varying=True)
                return mix_layer(summed, node_rows, ids, layer, varying=True)
            summed = linear(self.graph.adjacency @ x, layer.spread)
            x = self._mixed(summed, layer.own(x), self.ids, layer)
        if len(layers) == 1 and last is not None:
            return x.index_select(0, last.own)
        return x

    def _first(self, channel: Channel, layer: Layer) -> Tensor:
        """[N + U, D] the first layer, separately for items and users: each aggregates the other."""
        count, graph, name = self.sizes.items, self.graph, channel.modality
        users, frozen = self._users(channel), not channel.users.requires_grad
        for_items = self._sums(graph.to_items, users, layer, frozen, f"{name} to items")
        for_users, items = self._of_items(channel, layer)
        sums, node_rows = (for_items, for_users), (items, layer.own(users))
        if users.device.type != "cpu":
            return self._mixed(torch.cat(sums), torch.cat(node_rows), self.ids, layer)
        # no copy of all rows
        ids = self.ids[:count], self.ids[count:]
        parts = zip(sums, node_rows, ids, strict=True)
        return torch.cat([self._mixed(*part, layer) for part in parts])

    def _mixed(self, summed: Tensor, node_rows: Tensor, ids: Tensor, layer: Layer) -> Tensor:
        # compiled in training only: an evaluation has one pass, which would compile again
        mix = self._mix if torch.is_grad_enabled() else mix_layer
        return mix(summed, node_rows, ids, layer)

    def _users(self, channel: Channel) -> Tensor:
        """[U, d0] normalized; computed once if they are frozen."""
        unit = partial(normalized_rows, [channel.users])
        if channel.users.requires_grad:
            return unit()
        return self._constants(f"{channel.modality} users", self.ids, unit)

    def _of_items(self, channel: Channel, layer: Layer) -> tuple[Tensor, Tensor]:
        """[U, K] items aggregated by users and multiplied by W; [N, D] items through V and b."""
        name, project, graph = channel.modality, channel.project, self.graph.to_users
        if project is None:

            def unit_rows() -> Tensor:
                return normalized_rows([features_of(self.modality(name)).to(self.ids.dtype)])

            x = self._constants(name, self.ids, unit_rows)
            return self._sums(graph, x, layer, True, f"{name} to users"), layer.own(x)
        x = normalized_rows([project(self.features(name, self.ids))])
        return self._sums(graph, x, layer, False, f"{name} to users"), layer.own(x)

    def _sums(
        self, graph: WeightedGraph, x: Tensor, layer: Layer, constant: bool, name: str
    ) -> Tensor:
        """The aggregated neighbors times W, in the cheaper order; constants are aggregated once."""
        order = self.order or cheaper_order(
            *graph.structure.shape, len(graph), layer.spread.shape[0], constant=constant
        )
        if order == "multiply first":
            return graph @ linear(x, layer.spread)
        if constant:
            x = self._constants(f"{name} summed", self.ids, lambda: graph @ x.to(self.ids.dtype))
            return linear(x, layer.spread)
        return linear(graph @ x, layer.spread)

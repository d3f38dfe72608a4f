"""DRAGON: item features with graphs of similar users and similar items (Zhou et al. 2023).

For a modality with features F [N, d]: ``Z = lrelu(F W1 + b1) W2 + b2`` [N, D], users P [U, D],

    X = [Z; P] with l2-normalized rows,   X ← X + S X + S² X,   S = D^-1/2 A D^-1/2 of the pairs

Items are the concatenation ``I = [X_1, X_2, ...]``, then ``I ← I + M I`` (``mm_layers`` times) over
the k most similar items by the features of each modality. Users are ``U = [w_1 X_1, w_2 X_2, ...]``
with one weight per user and modality, then ``U ← U + C U`` over the users with the most items in
common, weighted by the softmax of these counts. The score is the inner product.

The last product with M and the product with C are computed only for the nodes of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.config import ModelOptions
from hasten.models.interface import Sizes
from hasten.models.multimodal.base import FEATURE_DEFAULTS, MultimodalModel
from hasten.models.multimodal.modal_data import chosen_modalities, training_pairs, xavier
from hasten.models.multimodal.modal_graphs import (
    FIRST_WEIGHT,
    item_graph,
    modality_weights,
    user_graph,
)
from hasten.models.search_space import Choice, Range
from hasten.models.supports import Supports
from hasten.objectives.base import Encoded
from hasten.objectives.pairwise import PairwiseExamples
from hasten.ops.dense.linear import LinearMap
from hasten.ops.dense.normalized_rows import normalized_rows
from hasten.ops.dtypes import upcast
from hasten.ops.graph.bipartite import Bipartite, WeightedGraph
from hasten.ops.graph.spmm import SparseGraph
from hasten.ops.graph.spmm_rows import RowPositions, spmm_rows

_SLOPE = 0.01
#: the published loss uses the logarithm to base 2
_PER_NAT = 1.4426950408889634


class DRAGONOptions(ModelOptions):
    """Options of DRAGON. The defaults are the paper's."""

    name: Literal["dragon"] = "dragon"
    width: int = Field(64, ge=1, description="embedding dimension D of each modality")
    hidden: int = Field(256, ge=1, description="hidden width of the feature network")
    layers: int = Field(2, ge=1, le=1000, description="layers over the user-item graph")
    mm_layers: int = Field(1, ge=0, le=1000, description="layers over the graph of similar items")
    neighbours: int = Field(10, ge=1, description="similar items per item, itself included")
    companions: int = Field(40, ge=0, description="similar users per user, by items in common")
    modalities: tuple[str, ...] | None = Field(
        None, min_length=1, description="modalities to use, in this order; none: all"
    )
    first_weight: float = Field(
        FIRST_WEIGHT,
        ge=0,
        le=1,
        description="weight of the first modality; the others share the rest",
    )
    l2: float = Field(1e-3, ge=0, description="L2 penalty of the users (paper: 1e-3, Clothing 0.1)")


class Channel(nn.Module):
    """The parameters of one modality."""

    def __init__(self, name: str, width: int, options: DRAGONOptions, sizes: Sizes) -> None:
        super().__init__()
        self.modality = name
        self.first = LinearMap(width, options.hidden)
        self.second = LinearMap(options.hidden, options.width)
        self.users = xavier(sizes.users, options.width)


class DRAGON(MultimodalModel):
    """The model."""

    name = "dragon"
    summary = "item features with graphs of similar users and items (Zhou et al. 2023)"
    Options = DRAGONOptions
    defaults = {**FEATURE_DEFAULTS, "lr": 1e-4}
    supports = Supports(recompute=True)
    search = {
        "training.lr": Range(5e-5, 5e-3, log=True),
        "model.layers": Choice(1, 2, 3),
        "model.neighbours": Choice(5, 10, 20),
        "model.first_weight": Range(0.0, 1.0),
        "model.l2": Range(1e-5, 1e-1, log=True),
    }
    loss_scale = _PER_NAT

    options: DRAGONOptions

    def __init__(self, options: DRAGONOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        modalities = chosen_modalities(options.modalities, sizes)
        self.weights = modality_weights(modalities, options.first_weight)
        self.channels = nn.ModuleList(
            Channel(name, width, options, sizes) for name, width in modalities
        )
        initial = nn.init.xavier_normal_(torch.empty(sizes.users, len(modalities), 1))
        self.shares = nn.Parameter(torch.softmax(initial[..., 0], dim=1))
        self.reset_graphs()

    def reset_graphs(self) -> None:
        self._graphs: tuple[WeightedGraph, WeightedGraph | None, WeightedGraph | None] | None = None

    def pair_inputs(self, pairs: PairwiseExamples) -> tuple[Rows, Rows]:
        """The distinct users and items of a batch."""
        self._graphs = self._graphs or self._build()
        _, alike, companions = self._graphs
        users = self.distinct(pairs.user)
        items = self.distinct(torch.cat([pairs.positive, pairs.negative]))
        return _rows(companions, users), _rows(alike, items)

    def row_graphs(self) -> Sequence[SparseGraph]:
        self._graphs = self._graphs or self._build()
        return [each.structure for each in self._graphs[1:] if each is not None]

    def encode_pairs(self, inputs: tuple[Rows, Rows], seed: int | None) -> Encoded:
        """Vectors of the users and of the items of a batch, and their ids, ascending."""
        return (*self.propagate(*inputs), *map(_ids, inputs))

    def pair_vectors(
        self, encoded: Encoded, pairs: PairwiseExamples
    ) -> tuple[Tensor, Tensor, Tensor]:
        of_users, of_items, users, items = encoded
        user = of_users.index_select(0, torch.searchsorted(users, pairs.user))
        pair_items = self.pair_nodes(pairs)[len(user) :]
        positive, negative = of_items.index_select(0, torch.searchsorted(items, pair_items)).chunk(
            2
        )
        return user, positive, negative

    def pair_penalty(self, pairs: PairwiseExamples) -> Tensor:
        """The mean squares of the users of each modality, summed over the batch."""
        penalties = [
            channel.users.index_select(0, pairs.user).square().sum() / self.options.width
            for channel in cast(Sequence[Channel], self.channels)
        ]
        return torch.stack(penalties).sum()

    def global_penalty(self) -> Tensor:
        """The mean square of the weights per user and modality."""
        return self.shares.square().mean()

    def all_vectors(self) -> Tensor:
        users, items = self.propagate(None, None)
        return torch.cat([items, users])

    def propagate(self, users: Rows | None, items: Rows | None) -> tuple[Tensor, Tensor]:
        """[S, M D] of the wanted users and items; None: all."""
        self._graphs = self._graphs or self._build()
        return cast(tuple[Tensor, Tensor], self.checkpointed(self._propagate, users, items))

    def _propagate(self, users: Rows | None, items: Rows | None) -> tuple[Tensor, Tensor]:
        assert self._graphs is not None
        options, (pairs, alike, companions) = self.options, self._graphs
        total = x = self._modalities()
        for _ in range(options.layers):
            total = x + pairs @ total
        of_items, of_users = torch.split(total, [self.sizes.items, self.sizes.users])
        for _ in range(options.mm_layers - 1):
            of_items = _joined(alike, of_items, None)
        each = of_users.view(self.sizes.users, len(self.channels), options.width)
        of_users = (each * self.shares[..., None].to(each.dtype)).view(of_users.shape)
        vectors = (
            _joined(companions, of_users, users),
            _joined(alike, of_items, items),
        )
        return upcast(vectors[0]), upcast(vectors[1])

    def _modalities(self) -> Tensor:
        """[N + U, M D] the modalities side by side, each with l2-normalized rows."""
        blocks = []
        for channel in cast(Sequence[Channel], self.channels):
            raw = self.features(channel.modality, self.shares)
            z = channel.second(F.leaky_relu_(channel.first(raw), _SLOPE))
            blocks.append((z, channel.users))
        return normalized_rows(*blocks)

    def _build(self) -> tuple[WeightedGraph, WeightedGraph | None, WeightedGraph | None]:
        """The graphs of the pairs, of similar items and of similar users, if they are used."""
        options, like = self.options, self.shares
        items = users = None
        with torch.inference_mode(False), torch.no_grad():
            pairs = training_pairs(self._dataset)
            if options.mm_layers:
                chosen = {self.modality(name): weight for name, weight in self.weights.items()}
                items = item_graph(chosen, options.neighbours).to(like)
            if options.companions:
                users = user_graph(pairs, self.sizes.items, options.companions).to(like)
            return (
                Bipartite.build(pairs, self.sizes.items, "symmetric").adjacency.to(like),
                items,
                users,
            )


#: int64 [S] distinct rows, with the positions of their entries if there is a graph
Rows = Tensor | RowPositions


def _rows(graph: WeightedGraph | None, rows: Tensor) -> Rows:
    return rows if graph is None else RowPositions.of(graph.structure, rows)


def _ids(rows: Rows) -> Tensor:
    return rows if isinstance(rows, Tensor) else rows.rows


def _joined(graph: WeightedGraph | None, x: Tensor, wanted: Rows | None) -> Tensor:
    """``x + graph x``, only the wanted rows."""
    if graph is None:
        return x if wanted is None else x.index_select(0, _ids(wanted))
    if wanted is None:
        return x + graph @ x
    node_rows, summed = spmm_rows(graph.structure, graph.weights, x, wanted)
    return node_rows + summed

"""FREEDOM: a frozen graph of similar items and a denoised graph of pairs (Zhou & Shen 2023).

Users P [U, D] and items I [N, D] are embeddings. With the graph A of pairs and the layers
``X⁽⁰⁾ = [I; P]``, ``X⁽ˡ⁺¹⁾ = D^-1/2 A D^-1/2 X⁽ˡ⁾``, the vectors are

    X = mean of X⁽⁰⁾ ... X⁽ᴸ⁾,   the items also  + M^K I

where M links every item to the k most similar ones by the features of each modality, and never
changes. In training, an epoch sees a share 1 - ``pruned`` of the pairs, normalized by their own
degrees. They are sampled without replacement, with probabilities proportional to
``1 / sqrt(d_u d_i)``, so that pairs of popular items and active users are left out more often.
The score is the inner product, the loss

    BPR(user, item) + ``modal_weight`` Σ_m BPR(user, F_m W_m)

with the features F_m as they are, where the published code also trains them. A bias would cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from hasten.arrays import ragged_offsets
from hasten.config import ModelOptions, TrainingOptions
from hasten.data.columns import counter_random as counter
from hasten.data.tables import TRAIN, Dataset
from hasten.models.interface import Sizes
from hasten.models.multimodal.base import FEATURE_DEFAULTS, FeatureModel
from hasten.models.multimodal.modal_data import chosen_modalities, training_pairs
from hasten.models.multimodal.modal_graphs import FIRST_WEIGHT, item_graph, modality_weights
from hasten.models.search_space import Choice, Range
from hasten.models.supports import Supports
from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.objectives.multimodal import FeaturePhase, bpr_loss
from hasten.objectives.pairwise import PairwiseExamples
from hasten.ops.dense.linear import LinearMap
from hasten.ops.dtypes import upcast
from hasten.ops.graph.bipartite import Bipartite, WeightedGraph
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.spmm import SparseGraph
from hasten.ops.graph.spmm_rows import RowPositions, spmm_rows
from hasten.ops.permutations import LastValueCache
from hasten.ops.transfer import to_device


class FREEDOMOptions(ModelOptions):
    """Options of FREEDOM."""

    name: Literal["freedom"] = "freedom"
    width: int = Field(64, ge=1, description="embedding dimension D")
    layers: int = Field(3, ge=1, le=1000, description="layers over the user-item graph")
    mm_layers: int = Field(1, ge=0, le=1000, description="layers over the graph of similar items")
    neighbours: int = Field(20, ge=1, description="similar items per item, itself included")
    pruned: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="share of the pairs left out of the graph in each epoch (paper: 0.8)",
    )
    modal_weight: float = Field(
        1e-3, ge=0, description="weight of the loss on the items' features alone"
    )
    modalities: tuple[str, ...] | None = Field(
        None, min_length=1, description="modalities to use, in this order; none: all"
    )
    first_weight: float = Field(
        FIRST_WEIGHT,
        ge=0,
        le=1,
        description="weight of the first modality; the others share the rest",
    )


@dataclass(frozen=True, eq=False)
class Wanted:
    """Nodes whose vectors are wanted, and the items among them.

    alike: the items in the graph of similar items; None: it is not used. users: bool [S, 1], the
    nodes that are none, if ``items`` has an item in the place of every user; else None.
    """

    nodes: RowPositions
    items: Tensor
    alike: RowPositions | None
    users: Tensor | None


class FREEDOM(FeatureModel):
    """The model."""

    name = "freedom"
    summary = "a frozen item graph and a denoised user-item graph (Zhou & Shen 2023)"
    Options = FREEDOMOptions
    defaults = {**FEATURE_DEFAULTS, "lr": 5e-3, "average": 2.0}
    supports = Supports()
    search = {
        "training.lr": Range(5e-4, 2e-2, log=True),
        "model.layers": Choice(1, 2, 3),
        "model.neighbours": Choice(5, 10, 20),
        "model.pruned": Range(0.0, 0.9),
        "model.modal_weight": Range(1e-5, 1e-1, log=True),
        "model.first_weight": Range(0.0, 1.0),
    }

    options: FREEDOMOptions

    def __init__(self, options: FREEDOMOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        modalities = chosen_modalities(options.modalities, sizes)
        self.weights = modality_weights(modalities, options.first_weight)
        self.items, self.users = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, options.width)))
            for count in (sizes.items, sizes.users)
        )
        self.projections = nn.ModuleDict(
            {name: LinearMap(width, options.width, bias=False) for name, width in modalities}
        )
        self.reset_graphs()

    def reset_graphs(self) -> None:
        self._alike: WeightedGraph | None = None
        self._whole: WeightedGraph | None = None
        self._pruned: LastValueCache[WeightedGraph] = LastValueCache()
        self._memory: WeightedGraph | None = None
        self._epoch = (0, 0)

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase over the training pairs."""
        self.read_features(dataset, training)
        self._whole_graph()  # for evaluation; not while a thread prepares a batch
        histories, batch_size = dataset.histories(TRAIN), training.batch_size
        return [
            FREEDOMPhase(
                self, list(self.parameters()), histories,
                items=self.sizes.items, batch_size=batch_size,
            )
        ]  # fmt: skip

    def begin_step(self, seed: int, epoch: int) -> None:
        """Use the pairs that are sampled for this epoch."""
        self._epoch = (seed, epoch)

    def pair_inputs(self, pairs: PairwiseExamples) -> Wanted:
        return self._wanted(self._training_graph(), self.distinct(self.pair_nodes(pairs)))

    def row_graphs(self) -> Sequence[SparseGraph]:
        alike = [self._item_graph()] if self.options.mm_layers else []
        return [each.structure for each in (self._whole_graph(), *alike)]

    def encode_pairs(self, inputs: Wanted, seed: int | None) -> Encoded:
        """Vectors of the batch's nodes [S, D], projected features of its items, and the nodes."""
        modal = []
        if self.options.modal_weight:
            for name, projection in self.projections.items():
                features = self.features(name, self.items)
                modal.append(projection(features.index_select(0, inputs.items)))
        vectors = self._propagate(self._training_graph(), inputs)
        return vectors, *map(upcast, modal), inputs.nodes.rows

    def _training_graph(self) -> WeightedGraph:
        """Of the training pairs, or of those that are sampled for the epoch."""
        if not self.options.pruned:
            return self._whole_graph()
        return self._pruned.get(self._epoch, lambda: self._sampled(*self._epoch))

    def _wanted(self, graph: WeightedGraph, nodes: Tensor) -> Wanted:
        """Of these nodes (int64 [S] on the host, ascending), the items first."""
        others, users = nodes >= self.sizes.items, None
        item_nodes = nodes[~others]
        if self.fixed:
            item_nodes, users = nodes.clamp(max=self.sizes.items - 1), others[:, None]
        alike = (
            RowPositions.of(self._item_graph().structure, item_nodes)
            if self.options.mm_layers
            else None
        )
        return Wanted(RowPositions.of(graph.structure, nodes), item_nodes, alike, users)

    def modal_losses(self, encoded: Encoded, pairs: PairwiseExamples) -> list[Tensor]:
        """[B] for each modality: BPR of the users and the projected features of the items."""
        vectors, *modal, nodes = encoded
        user, _, _ = self.take(vectors, nodes, pairs)
        index = torch.searchsorted(nodes, self.pair_nodes(pairs)[len(user) :])
        return [bpr_loss(user, *features.index_select(0, index).chunk(2)) for features in modal]

    def all_vectors(self) -> Tensor:
        nodes = torch.arange(self.sizes.items + self.sizes.users)
        graph = self._whole_graph()
        return self._propagate(graph, to_device(self._wanted(graph, nodes), self.device))

    def _propagate(self, graph: WeightedGraph, wanted: Wanted) -> Tensor:
        """[S, D] of these nodes."""
        x = torch.cat([self.items, self.users])
        layers: list[Tensor] = []
        for _ in range(self.options.layers - 1):
            layers.append(x.index_select(0, wanted.nodes.rows))
            x = graph @ x
        layers += spmm_rows(graph.structure, graph.weights, x, wanted.nodes)
        mean = upcast(sum(layers[1:], layers[0]) / len(layers))
        if wanted.alike is None:
            return mean
        alike: WeightedGraph = self._item_graph()
        of_items: Tensor = self.items
        for _ in range(self.options.mm_layers - 1):
            of_items = alike @ of_items
        _, similar = spmm_rows(alike.structure, alike.weights, of_items, wanted.alike)
        if wanted.users is not None:
            return mean + upcast(similar).masked_fill(wanted.users, 0.0)
        count = len(wanted.items)
        return torch.cat([mean[:count] + upcast(similar), mean[count:]])

    def _whole_graph(self) -> WeightedGraph:
        if self._whole is None:
            self._whole = self._graph_of(training_pairs(self._dataset))
        return self._whole

    def _item_graph(self) -> WeightedGraph:
        if self._alike is None:
            chosen = {self.modality(name): weight for name, weight in self.weights.items()}
            with torch.inference_mode(False), torch.no_grad():
                self._alike = item_graph(chosen, self.options.neighbours).to(self.items)
        return self._alike

    def _graph_of(self, pairs: CSR) -> WeightedGraph:
        with torch.inference_mode(False), torch.no_grad():
            return Bipartite.build(pairs, self.sizes.items, "symmetric").adjacency.to(self.items)

    def _sampled(self, seed: int, epoch: int) -> WeightedGraph:
        """The graph of the pairs of an epoch.

        The smallest of exponential variables with rates w are a sample without replacement with
        probabilities proportional to w (Efraimidis & Spirakis 2006).
        """
        pairs = training_pairs(self._dataset)
        count = int(len(pairs.items) * (1 - self.options.pruned))
        degree = np.bincount(pairs.items, minlength=self.sizes.items)[pairs.items]
        random = counter.uniform(
            counter.key(seed, counter.Stream.NEIGHBORS, epoch), len(pairs.items)
        )
        order = -np.log1p(-random) * np.sqrt(degree * pairs.lengths[pairs.rows])
        chosen = np.sort(np.argpartition(order, count)[:count])
        graph = self._graph_of(
            CSR(ragged_offsets(pairs.rows[chosen], len(pairs)), pairs.items[chosen])
        )
        if self.fixed:  # a CUDA graph reads the memory of its recording
            self._memory = graph = graph if self._memory is None else graph.copied_to(self._memory)
        return graph


class FREEDOMPhase(FeaturePhase):
    """BPR of the pairs, and of the users with the features of the items alone."""

    def encode_inputs(self, batch: Batch) -> Wanted:
        model = cast(FREEDOM, self.model)
        model.begin_step(batch.seed, batch.epoch)
        return model.pair_inputs(self.pairs(batch, batch.ids))

    def encode(self, batch: Batch) -> Encoded:
        cast(FREEDOM, self.model).begin_step(batch.seed, batch.epoch)
        return super().encode(batch)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        model, pairs = cast(FREEDOM, self.model), self.on_device(batch, ids)
        count = batch.denominators["examples"]
        terms = [Term("loss", bpr_loss(*model.pair_vectors(encoded, pairs)).sum(), count)]
        if weight := model.options.modal_weight:
            modal = torch.stack(model.modal_losses(encoded, pairs)).sum()
            terms.append(Term("modal", modal, count, weight))
        return terms

"""BM3: vectors of users, items and features, bootstrapped without negatives (Zhou et al. 2023).

Users P [U, D] and items I [N, D] are embeddings. With the graph of pairs and the layers
``X⁽⁰⁾ = [I; P]``, ``X⁽ˡ⁺¹⁾ = D^-1/2 A D^-1/2 X⁽ˡ⁾``,

    H = mean of X⁽⁰⁾ ... X⁽ᴸ⁾, the items also + I;   E_m = F_m W_m + b_m;   q(x) = x Q + b

for the features F_m of each modality. ``t(x)`` is x after dropout, without gradient, and
``d(a, b) = 1 - cos(q(a), t(b))``. The loss of a user u with the item i is

    d(H_u, H_i) + d(H_i, H_u) + ``modal_weight`` Σ_m [d(E_m,i, H_i) + d(E_m,i, E_m,i)]

and ``l2 (||H_users|| + ||H_items||) / N`` is added once per step. Scores are inner products of
``q(H)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.config import ModelOptions, TrainingOptions
from hasten.data.tables import TRAIN, Dataset
from hasten.models.interface import Sizes
from hasten.models.multimodal.base import FEATURE_DEFAULTS, FeatureModel
from hasten.models.multimodal.modal_data import chosen_modalities, training_pairs
from hasten.models.search_space import Choice, Range
from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.objectives.multimodal import FeaturePhase
from hasten.objectives.pairwise import PairwiseExamples
from hasten.ops.dense.linear import LinearMap
from hasten.ops.dtypes import upcast
from hasten.ops.graph.bipartite import Bipartite, WeightedGraph
from hasten.ops.graph.spmm import SparseGraph
from hasten.ops.random import key, signed, uniform


class BM3Options(ModelOptions):
    """Options of BM3."""

    name: Literal["bm3"] = "bm3"
    width: int = Field(64, ge=1, description="embedding dimension D")
    layers: int = Field(1, ge=0, le=1000, description="layers over the user-item graph")
    dropout: float = Field(0.5, ge=0, lt=1, description="dropout rate of the targets")
    modal_weight: float = Field(2.0, ge=0, description="weight of the losses of the features")
    modalities: tuple[str, ...] | None = Field(
        None, min_length=1, description="modalities to use, in this order; none: all"
    )
    l2: float = Field(0.1, ge=0, description="weight of the norms of all vectors")


@dataclass(frozen=True)
class Inputs:
    """The nodes of a batch, int64 [S] ascending, and the items among them, first.

    keys: int64, of the random numbers of each target; None: made from the seed.
    """

    nodes: Tensor
    items: Tensor
    keys: Tensor | None = None


class BM3(FeatureModel):
    """The model."""

    name = "bm3"
    summary = "bootstrapped multimodal vectors without negatives (Zhou et al. 2023)"
    Options = BM3Options
    defaults = {**FEATURE_DEFAULTS, "lr": 1e-3}
    search = {
        "training.lr": Range(2e-4, 1e-2, log=True),
        "model.layers": Choice(0, 1, 2),
        "model.dropout": Range(0.1, 0.7),
        "model.modal_weight": Range(0.1, 4.0, log=True),
        "model.l2": Range(1e-3, 1.0, log=True),
    }

    options: BM3Options

    def __init__(self, options: BM3Options, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.items, self.users = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, options.width)))
            for count in (sizes.items, sizes.users)
        )
        modalities = chosen_modalities(options.modalities, sizes)
        self.projections = nn.ModuleDict(
            {name: LinearMap(width, options.width) for name, width in modalities}
        )
        self.predictor = LinearMap(options.width, options.width)
        for linear in (*self.projections.values(), self.predictor):
            nn.init.xavier_normal_(cast(LinearMap, linear).weight)
        self.reset_graphs()

    def reset_graphs(self) -> None:
        self._graph: WeightedGraph | None = None

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase over the training pairs."""
        self.read_features(dataset, training)
        return [
            BM3Phase(
                self,
                list(self.parameters()),
                dataset.histories(TRAIN),
                items=self.sizes.items,
                batch_size=training.batch_size,
                l2=self.options.l2,
            )
        ]

    def pair_inputs(self, pairs: PairwiseExamples) -> Inputs:
        """The nodes of the batch, and the items among them."""
        nodes, items = self.distinct(self.pair_nodes(pairs)), self.sizes.items
        # with fixed shapes, an item in the place of every user: its features are not used there
        return Inputs(nodes, nodes.clamp(max=items - 1) if self.fixed else nodes[nodes < items])

    def row_graphs(self) -> Sequence[SparseGraph]:
        return ()

    def encode_pairs(self, inputs: Inputs, seed: int | None) -> Encoded:
        """Of the batch's nodes and of its items' features: values and targets; norms; the nodes."""
        nodes, item_nodes = inputs.nodes, inputs.items
        whole = self._propagate()
        items, users = torch.split(whole, [self.sizes.items, self.sizes.users])
        norm = torch.linalg.vector_norm
        norms = (norm(users) + norm(items)) / self.sizes.items
        vectors = [whole.index_select(0, nodes)]
        if self.options.modal_weight:
            for name, projection in self.projections.items():
                values = projection(self.features(name, self.items).index_select(0, item_nodes))
                vectors.append(upcast(values))
        if seed is None:
            assert inputs.keys is not None
            keys: Sequence[int | Tensor] = inputs.keys.unbind()
        else:
            keys = [key(seed, number) for number in range(len(vectors))]
        targets = [self.target(x, nodes, base) for x, base in zip(vectors, keys, strict=False)]
        return *vectors, *targets, norms, nodes

    def target(self, x: Tensor, nodes: Tensor, base: int | Tensor) -> Tensor:
        """[S, D] ``x`` without gradient after dropout, which depends on the key and the node."""
        nodes = nodes[: len(x), None]
        random = uniform(base, nodes, torch.arange(x.shape[1], device=x.device))
        rate = self.options.dropout
        return x.detach() * (random >= rate).to(x.dtype) / (1 - rate)

    def pair_losses(self, encoded: Encoded, pairs: PairwiseExamples) -> tuple[Tensor, Tensor]:
        """[B] the loss of the pairs, and that of the features of their items."""
        *vectors, _, nodes = encoded
        values, targets = vectors[: len(vectors) // 2], vectors[len(vectors) // 2 :]
        user, item, _ = torch.searchsorted(nodes, self.pair_nodes(pairs)).chunk(3)

        def distance(x: Tensor, rows: Tensor, target: Tensor) -> Tensor:
            online = upcast(self.predictor(x.index_select(0, rows)))
            return 1 - F.cosine_similarity(online, target, dim=1)

        of_user, of_item = (targets[0].index_select(0, rows) for rows in (user, item))
        loss = distance(values[0], user, of_item) + distance(values[0], item, of_user)
        modal = torch.zeros_like(loss)
        for x, target in zip(values[1:], targets[1:], strict=True):
            modal = modal + distance(x, item, of_item)
            modal = modal + distance(x, item, target.index_select(0, item))
        return loss, modal

    def all_vectors(self) -> Tensor:
        return upcast(self.predictor(self._propagate()))

    def _propagate(self) -> Tensor:
        """[N + U, D] the vectors H."""
        if self._graph is None:
            with torch.inference_mode(False), torch.no_grad():
                pairs = training_pairs(self._dataset)
                whole = Bipartite.build(pairs, self.sizes.items, "symmetric").adjacency
                self._graph = whole.to(self.items)
        x = total = torch.cat([self.items, self.users])
        for _ in range(self.options.layers):
            x = self._graph @ x
            total = total + x
        mean = total / (self.options.layers + 1)
        of_items, of_users = torch.split(mean, [self.sizes.items, self.sizes.users])
        return upcast(torch.cat([of_items + self.items, of_users]))


class BM3Phase(FeaturePhase):
    """The losses of the pairs, without negatives."""

    def encode_inputs(self, batch: Batch) -> Inputs:
        inputs: Inputs = super().encode_inputs(batch)
        if not self.one_seed_per_step:
            return inputs
        seed, count = self.dropout_seed(batch), 1 + len(cast(BM3, self.model).projections)
        return replace(inputs, keys=torch.tensor([signed(key(seed, n)) for n in range(count)]))

    def sample(self, batch: Batch, ids: Tensor) -> PairwiseExamples:
        chosen = self._sampler.at(batch.seed, batch.epoch, ids)
        return PairwiseExamples(
            self.pair_users[chosen], self.pair_items[chosen], self.pair_items[chosen]
        )

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        model, count = cast(BM3, self.model), batch.denominators["examples"]
        loss, modal = model.pair_losses(encoded, self.on_device(batch, ids))
        terms = [Term("loss", loss.sum(), count)]
        if weight := model.options.modal_weight:
            terms.append(Term("modal", modal.sum(), count, weight))
        return terms

    def regularizers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        return [Term("l2", encoded[-2], 1.0, self.l2)] if self.l2 else ()

"""LightGCN: the mean of users' and items' embeddings over their neighbourhoods (He et al. 2020).

``E⁽ᵏ⁺¹⁾ = A E⁽ᵏ⁾`` with ``A[u, i] = A[i, u] = 1 / sqrt(|N(u)| |N(i)|)`` over the training pairs; a
node's vector is the mean of its layers 0 to K, the score of a user and an item the product of
theirs. There is nothing to learn but layer 0. The loss is BPR with the squared norms of layer 0 of
the batch. In training the last layer is computed for the nodes of the batch alone: no number
changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hasten.config import ModelOptions, TrainingOptions
from hasten.data.interactions.clean import stable_order
from hasten.data.tables import TRAIN, Dataset
from hasten.models.collaborative.bprmf import PAIR_DEFAULTS
from hasten.models.interface import Model, Sizes
from hasten.objectives.base import Encoded, Phase
from hasten.objectives.pairwise import InnerProductPairs, Pairs, PairwisePhase, Sampling
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.spmm import EdgeWeights, SparseGraph, spmm
from hasten.ops.graph.spmm_rows import spmm_rows
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable, FixedTable
from hasten.scoring import Catalogue, FactorScorer, RecommenderQueries


class LightGCNOptions(ModelOptions):
    """Options of LightGCN; the values of the paper in brackets."""

    name: Literal["lightgcn"] = "lightgcn"
    width: int = Field(64, ge=1, description="D, the width of users and items [64]")
    layers: int = Field(3, ge=1, description="K, how far neighbours are summed [3]")
    l2: float = Field(1e-4, ge=0, description="weight of layer 0's squared norms / 2 [1e-4]")
    sampling: Sampling = Field(
        "users", description="pairs: users alike, or every interaction once an epoch"
    )


class LightGCN(InnerProductPairs, Model):
    """Nodes [N + U, D], the items first. Its graph is that of the data, given by :meth:`phases`."""

    name = "lightgcn"
    summary = "means of embeddings over neighbours (He et al. 2020)"
    reads = "pairs"
    scores_by_phases = True
    Options = LightGCNOptions
    defaults = {**PAIR_DEFAULTS, "lr": 1e-3, "batch_size": 1024}
    sample = "library"

    options: LightGCNOptions

    def __init__(self, options: LightGCNOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.nodes = EmbeddingTable(sizes.items + sizes.users, options.width)
        self.graph: SparseGraph | None = None
        self._encoded: Tensor | None = None

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase over the training pairs; the graph is built here."""
        found = CSR.of(dataset.histories(TRAIN)).distinct()
        self.graph, self.weights = _graph(found, self.sizes.items, self.nodes.weight)
        return [
            PairwisePhase(
                self,
                list(self.parameters()),
                dataset.histories(TRAIN),
                items=self.sizes.items,
                batch_size=training.batch_size,
                l2=self.options.l2,
                sampling=self.options.sampling,
            )
        ]

    def encode_pairs(self, pairs: Pairs, draw: int) -> Encoded:
        """Vectors and layer 0 of the nodes of a batch [S, D] each, and these nodes, ascending."""
        wanted = torch.unique(self._nodes(pairs))
        own, mean = self._propagate(wanted)
        return mean, own, wanted.to(own.device)

    def pair_vectors(self, encoded: Encoded, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        mean, _, wanted = encoded
        return self._rows(mean, wanted, pairs)

    def penalized(self, encoded: Encoded, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """[B, D] what the L2 norm is taken of: layer 0."""
        _, own, wanted = encoded
        return self._rows(own, wanted, pairs)

    def _nodes(self, pairs: Pairs) -> Tensor:
        return torch.cat([pairs.user + self.sizes.items, pairs.positive, pairs.negative])

    def _rows(self, table: Tensor, wanted: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        place = torch.searchsorted(wanted, self._nodes(pairs).to(wanted.device))
        user, positive, negative = table.index_select(0, place).chunk(3)
        return user, positive, negative

    def _propagate(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """[S, D] layer 0 and the mean of all layers of these nodes (int64 [S] on the host)."""
        assert self.graph is not None
        x, rows = self.nodes.block(0, len(self.nodes)), wanted.to(self.nodes.weight.device)
        layers: list[Tensor] = []
        for _ in range(self.options.layers - 1):
            layers.append(x.index_select(0, rows))
            x = spmm(self.graph, self.weights, x)
        # the last layer is computed for these nodes alone
        layers += spmm_rows(self.graph, self.weights, x, wanted)
        return layers[0], sum(layers[1:], layers[0]) / len(layers)

    @contextmanager
    def encoded_once(self) -> Iterator[None]:
        """Within it, :meth:`scorer` encodes the graph at its first use only."""
        self._encoded = self._judged()
        try:
            yield
        finally:
            self._encoded = None

    def _judged(self) -> Tensor:
        """[N + U, D] the vectors of all items, then of all users."""
        return self._propagate(torch.arange(len(self.nodes)))[1]

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Products of the vectors of users and items."""
        vectors = self._judged() if self._encoded is None else self._encoded
        user = torch.from_numpy(queries.user).to(vectors.device) + self.sizes.items
        items = FixedTable(vectors[: self.sizes.items])
        return FactorScorer(vectors.index_select(0, user), Catalogue(items))


def _graph(pairs: CSR, items: int, like: Tensor) -> tuple[SparseGraph, EdgeWeights]:
    """Items [0, N) and users [N, N + U) joined by the distinct pairs, normalised on both sides."""
    user, item = pairs.rows, pairs.items
    order = stable_order(item, items)
    row = np.concatenate([item[order], user + items])
    column = np.concatenate([user[order] + items, item])
    nodes = items + len(pairs)
    degree = np.bincount(row, minlength=nodes).astype(np.float64)
    values = torch.from_numpy(1 / np.sqrt(degree[row] * degree[column]))
    graph = SparseGraph.build(row, column, nodes, nodes).to(like.device)
    return graph, graph.weigh(values.to(like))

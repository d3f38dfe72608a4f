"""BPR-MF: matrix factorisation trained by pairwise ranking (Rendle et al. 2009).

Score ``u · i``. The embeddings that KGAT and others are published to start from are its.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hasten.config import ModelOptions, TrainingOptions
from hasten.data.tables import TRAIN, Dataset
from hasten.models.interface import Model, Sizes
from hasten.models.supports import Supports
from hasten.objectives.base import Encoded, Phase
from hasten.objectives.pairwise import InnerProductPairs, Pairs, PairwisePhase, Sampling
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable, Table
from hasten.scoring import Catalogue, FactorScorer, RecommenderQueries

#: what recommenders of users and items are judged by, and how their data are split
PAIR_DEFAULTS: Mapping[str, Any] = {
    "evaluation.metrics": ("recall@20", "ndcg@20", "ndcg_kgat_legacy@20"),
    "evaluation.mask_history": True,
    "data.ratio_order": "random",
    "data.valid_share": 0.1,
}


class BPRMFOptions(ModelOptions):
    """Options of BPR-MF."""

    name: Literal["bprmf"] = "bprmf"
    width: int = Field(64, ge=1, description="D, the width of users and items")
    l2: float = Field(1e-5, ge=0, description="weight of the vectors' squared norms / 2")
    sampling: Sampling = Field(
        "users", description="examples: users alike, or every interaction once an epoch"
    )


class BPRMF(InnerProductPairs, Model):
    """Users [U, D] and items [N, D]."""

    name = "bprmf"
    summary = "matrix factorisation by pairwise ranking (Rendle et al. 2009)"
    reads = "pairs"
    Options = BPRMFOptions
    defaults = {**PAIR_DEFAULTS, "lr": 1e-3, "batch_size": 1024}
    sample = "library"
    supports = Supports(precision=False)

    options: BPRMFOptions

    def __init__(self, options: BPRMFOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.users: Table = EmbeddingTable(sizes.users, options.width)
        self.items: Table = EmbeddingTable(sizes.items, options.width)

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase over the training pairs."""
        return [
            PairwisePhase(
                self,
                list(self.parameters()),
                dataset.histories(TRAIN),
                items=len(dataset.items),
                batch_size=training.batch_size,
                l2=self.options.l2,
                sampling=self.options.sampling,
            )
        ]

    def pair_vectors(self, encoded: Encoded, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        device = next(self.parameters()).device
        items = torch.cat([pairs.positive, pairs.negative]).to(device, non_blocking=True)
        positive, negative = self.items.rows(items).chunk(2)
        return self.users.rows(pairs.user.to(device, non_blocking=True)), positive, negative

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """``u · i`` for all items."""
        device = next(self.parameters()).device
        users = self.users.rows(torch.from_numpy(queries.user).to(device))
        return FactorScorer(users, Catalogue(self.items))

"""Popularity baseline: every user gets the items with the most training interactions."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hasten.config import ModelOptions
from hasten.data.tables import TRAIN, Dataset
from hasten.models.interface import Model, Sizes
from hasten.models.supports import FITTED
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import FixedTable
from hasten.scoring import Catalog, FactorScorer, RecommenderQueries


class PopOptions(ModelOptions):
    """Popularity has no options."""

    name: Literal["pop"] = "pop"


class Pop(Model):
    """Training interactions per item, without gradient steps."""

    name = "pop"
    summary = "baseline: the most popular items"
    reads = "pairs"
    Options = PopOptions
    sample = "sequences"
    supports = FITTED
    scores_new_users = True

    counts: Tensor

    def __init__(self, options: PopOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.register_buffer("counts", torch.zeros(sizes.items, dtype=torch.int64))

    def fit(self, dataset: Dataset) -> None:
        """Count the training interactions of each item."""
        item = dataset.interactions.item[dataset.part == TRAIN]
        counts = np.bincount(item, minlength=len(self.counts))
        self.counts.copy_(torch.from_numpy(counts))

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """The counts, the same for every query (exact in float32 below 2^24 per item)."""
        counts = self.counts.to(torch.float32)[:, None]
        return FactorScorer(counts.new_ones(len(queries), 1), Catalog(FixedTable(counts)))

"""Degree baseline: a link is likely if both ends have many links of its relation.

``score(h, r, t) = log(1 + links of r from h) + log(1 + links of r to t)``, counted in training
(preferential attachment per relation), without gradient steps.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hasten.config import ModelOptions
from hasten.data.tables import TRAIN, KnowledgeGraph
from hasten.models.interface import Model, Sizes
from hasten.models.knowledge_graph.base import METRICS
from hasten.models.supports import FITTED
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.transfer import to_device
from hasten.scoring import PairScorer, TripleQueries


class DegreeOptions(ModelOptions):
    """Degrees have no options."""

    name: Literal["degree"] = "degree"


class Degree(Model):
    """Logarithms of degrees: row r of tails, row r + R of heads."""

    name = "degree"
    summary = "baseline: node degrees per relation"
    reads = "triples"
    Options = DegreeOptions
    defaults = {"evaluation.metrics": METRICS}
    sample = "medicine"
    supports = FITTED

    degrees: Tensor

    def __init__(self, options: DegreeOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.register_buffer("degrees", torch.zeros(2 * sizes.relations, sizes.entities))

    def fit(self, dataset: KnowledgeGraph) -> None:
        """Count the training links."""
        train, count = dataset.of(TRAIN), self.sizes.entities
        ends = ((train.relation, train.tail), (train.relation + self.sizes.relations, train.head))
        codes = np.concatenate([relation * count + node for relation, node in ends])
        counts = np.bincount(codes, minlength=self.degrees.numel()).reshape(self.degrees.shape)
        self.degrees.copy_(torch.from_numpy(np.log1p(counts)))

    def scorer(self, queries: TripleQueries) -> Scorer:
        """The degrees of all candidates, and that of the given end."""
        ids = tuple(map(torch.from_numpy, (queries.entity, queries.relation)))
        return PairScorer(self.scores, *to_device(ids, self.device))

    def scores(self, entity: Tensor, relation: Tensor, answers: Tensor) -> Tensor:
        """[Q, K] for int64 [Q, K] answers."""
        relations = self.sizes.relations
        query_degree = self.degrees[(relation + relations) % (2 * relations), entity]
        return self.degrees[relation[:, None], answers] + query_degree[:, None]

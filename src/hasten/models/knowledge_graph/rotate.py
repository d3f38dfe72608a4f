"""RotatE: relations are rotations in the complex plane (Sun et al. 2019).

Score ``γ - Σ_k |h_k r_k - t_k|`` with ``r_k = exp(i θ_k)``. A vector of an entity holds the real
parts, then the imaginary parts. The reciprocal of a relation is the inverse rotation, -θ, so it has
no parameters. The loss is that of self-adversarial negatives (equation 5), summed over the queries
in both directions. Differences: negatives are no known answers; triples have equal weights.

Shapes: B queries, K candidates, D = 2 C numbers of an entity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn.functional import softplus

from hasten.config import RunConfig
from hasten.models.data_size import DataSize
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.base import METRICS, TripleModel
from hasten.models.knowledge_graph.complex import even_width
from hasten.models.knowledge_graph.triple_options import TripleOptions
from hasten.models.rows import Rows
from hasten.models.search_space import Choice, Range
from hasten.models.supports import Supports
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable
from hasten.scoring import PairScorer, TripleQueries, with_self_score

#: numbers in the differences of queries and entities that ranking holds at once
_DIFFERENCES = 1 << 22
#: the same on a CPU, and of so many queries: few enough for a cache. Tensors of 16 MB, which many
#: small ones outlived, took 3 GB of the allocator
_DIFFERENCES_CPU, _QUERIES_CPU = 1 << 18, 4


class RotatEOptions(TripleOptions):
    """Options of RotatE."""

    name: Literal["rotate"] = "rotate"
    loss: Literal["sampled"] = Field("sampled", description="one answer and sampled negatives")
    negatives: int = Field(128, ge=1, description="sampled negatives per answer")
    margin: float = Field(6.0, gt=0, description="gamma, the distance at which scores are 0")
    temperature: float = Field(
        1.0, ge=0, description="alpha of the softmax that weighs the negatives; 0: equal weights"
    )

    _even = field_validator("width")(even_width)


class RotatE(TripleModel):
    """The model."""

    name = "rotate"
    summary = "rotations in the complex plane (Sun et al. 2019)"
    Options = RotatEOptions
    supports = Supports(precision=False)
    search = {
        "training.lr": Range(5e-4, 1e-2, log=True),
        "training.batch_size": Choice(128, 256, 512),
        "model.width": Choice(100, 200, 400),
        "model.negatives": Choice(64, 128, 256),
        "model.margin": Range(3.0, 12.0),
        "model.temperature": Range(0.5, 2.0),
    }
    defaults = {"lr": 3e-3, "batch_size": 256, "evaluation.metrics": METRICS}
    defaults_from_data = ("model.exclude_self",)
    options: RotatEOptions

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """The relations that link no entity to itself are found in the data."""
        return {"model.exclude_self": True}

    def __init__(self, options: RotatEOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        # distances of random vectors are then near the margin
        bound = 2 * (options.margin + 2) / options.width
        nn.init.uniform_(self.entities.block(0, sizes.entities), -bound, bound)
        self.relations = EmbeddingTable(sizes.relations, options.width // 2)
        nn.init.uniform_(self.relations.weight, -math.pi, math.pi)

    def rows_of(self) -> Mapping[str, Rows]:
        return {**super().rows_of(), "relations.weight": Rows.of("relations")}

    def rotated(self, entity: Tensor, relation: Tensor) -> Tensor:
        """[B, D] the entities rotated by relations, or back by reciprocals."""
        count = self.sizes.relations
        angle = self.relations.rows(relation % count) * (1 - 2 * (relation >= count))[:, None]
        (re, im), cos, sin = self.entities.rows(entity).chunk(2, 1), angle.cos(), angle.sin()
        return torch.cat([re * cos - im * sin, re * sin + im * cos], 1)

    def closeness(self, rotated: Tensor, tails: Tensor) -> Tensor:
        """[B, K] the margin minus the distances. rotated: [B, D]; tails: [B, K, D] or [K, D]."""
        re, im = (rotated[:, None] - tails).chunk(2, dim=2)
        # the gradient of a modulus is not defined at 0
        return self.options.margin - (re.square() + im.square() + 1e-12).sqrt().sum(2)

    def scores(self, entity: Tensor, relation: Tensor, answers: Tensor) -> Tensor:
        return self.closeness(self.rotated(entity, relation), self.entities.rows(answers))

    def sampled_loss(self, true: Tensor, sampled: Tensor) -> Tensor:
        """Equation 5: close negatives weigh more; no gradient goes through the weights."""
        weight = torch.softmax(self.options.temperature * sampled.detach(), dim=-1)
        return softplus(-true).sum() + (weight * softplus(sampled)).sum()

    def scorer(self, queries: TripleQueries) -> Scorer:
        def score(rotated: Tensor, candidates: Tensor) -> Tensor:
            tails = self.entities.rows(candidates[0])  # the same for all queries
            numbers, few = _DIFFERENCES, max(1, _DIFFERENCES // tails.numel())
            if tails.device.type == "cpu":
                numbers, few = _DIFFERENCES_CPU, _QUERIES_CPU
            columns = max(1, numbers // (few * tails.shape[1]))
            scores = rotated.new_empty(len(rotated), len(tails))
            for row in range(0, len(rotated), few):
                for column in range(0, len(tails), columns):
                    place = slice(row, row + few), slice(column, column + columns)
                    scores[place] = self.closeness(rotated[place[0]], tails[place[1]])
            return scores

        entity, relation = self._ids(queries)
        scorer = PairScorer(score, self.rotated(entity, relation))
        return with_self_score(scorer, entity, self.self_scores(relation))

"""Scores of links with a term for the node of the query itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.ops.table import FixedTable
from hasten.scoring import Catalog, FactorScorer


@dataclass(frozen=True, kw_only=True)
class SelfScorer(FactorScorer):
    """A FactorScorer that adds ``self_score`` [Q] to the score of a query with its own ``node``.

    node: int64 [Q].
    """

    node: Tensor
    self_score: Tensor

    def block(self, start: int, stop: int) -> Tensor:
        column = self.node - start
        inside = (column >= 0) & (column < stop - start)
        column = column.clamp(0, max(0, stop - start - 1))
        scores = super().block(start, stop)
        added = torch.where(inside, self.self_score, 0.0).to(scores.dtype)
        return scores.scatter_add_(1, column[:, None], added[:, None])

    def listed(self, ids: Tensor) -> Tensor:
        return super().listed(ids) + self._added(ids[None])

    def pairs(self, ids: Tensor) -> Tensor:
        return super().pairs(ids) + self._added(ids)

    def _added(self, ids: Tensor) -> Tensor:
        return self.self_score[:, None] * (ids == self.node[:, None])


def self_scorer(
    query: Tensor, vectors: Tensor, bias: Tensor, node: Tensor, self_score: Tensor | None
) -> FactorScorer:
    """The scorer of these queries [Q, D], with a self-score [Q] of their nodes or without."""
    catalog = Catalog(FixedTable(vectors))
    if self_score is None:
        return FactorScorer(query, catalog, bias)
    return SelfScorer(query, catalog, bias, node=node, self_score=self_score)

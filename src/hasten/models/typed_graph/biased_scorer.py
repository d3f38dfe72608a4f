"""A scorer with a bias per query."""

from __future__ import annotations

from torch import Tensor

from hasten.ops.ranking.scorer import Scorer


class BiasedScorer:
    """Adds a number to all scores of a query. bias: [Q]."""

    def __init__(self, scorer: Scorer, bias: Tensor) -> None:
        self.scorer, self.bias = scorer, bias

    def block(self, start: int, stop: int) -> Tensor:
        return self.scorer.block(start, stop) + self.bias[:, None]

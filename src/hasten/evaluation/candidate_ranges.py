"""Restrict each query to a contiguous range of candidates.

In a typed graph the nodes of a type have consecutive ids, so the candidates of a query are a range.
Scores outside of it are -inf, and blocks without candidates are not computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.ops.ranking.scorer import Scorer


@dataclass(frozen=True)
class RangeScorer:
    """A scorer whose query q has the candidates first[q]..last[q] - 1; int64 [Q] each."""

    scorer: Scorer
    first: Int64
    last: Int64

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] scores, -inf outside of the ranges."""
        low = max(start, int(self.first.min()))
        high = min(stop, int(self.last.max()))
        if low >= high:
            one = self.scorer.block(start, start + 1)  # for its dtype and device
            return one.new_full((len(one), stop - start), -torch.inf)
        inner = self.scorer.block(low, high)
        place = torch.arange(low, high, device=inner.device)
        first, last = (
            torch.from_numpy(e).to(inner.device)[:, None] for e in (self.first, self.last)
        )
        inner = inner.masked_fill((place < first) | (place >= last), -torch.inf)
        if (low, high) == (start, stop):
            return inner
        scores = inner.new_full((len(inner), stop - start), -torch.inf)
        scores[:, low - start : high - start] = inner
        return scores

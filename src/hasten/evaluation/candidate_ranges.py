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
    """A scorer that restricts each query to a range of candidates.

    range_start, range_stop: int64 [Q]; the candidates of a query are those from start to stop - 1.
    """

    scorer: Scorer
    range_start: Int64
    range_stop: Int64

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] scores, -inf outside of the ranges."""
        low = max(start, int(self.range_start.min()))
        high = min(stop, int(self.range_stop.max()))
        if low >= high:
            one = self.scorer.block(start, start + 1)  # for its dtype and device
            return one.new_full((len(one), stop - start), -torch.inf)
        inner = self.scorer.block(low, high)
        candidates = torch.arange(low, high, device=inner.device)
        starts, stops = (
            torch.from_numpy(bound).to(inner.device)[:, None]
            for bound in (self.range_start, self.range_stop)
        )
        inner = inner.masked_fill((candidates < starts) | (candidates >= stops), -torch.inf)
        if (low, high) == (start, stop):
            return inner
        scores = inner.new_full((len(inner), stop - start), -torch.inf)
        scores[:, low - start : high - start] = inner
        return scores

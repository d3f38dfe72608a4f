"""Scores of the candidates of one type: the others never compete.

In a typed graph the nodes of a type stand together, so a question's candidates are a span of the
catalogue. Outside of it scores are -inf, and a block in which no question has a candidate is not
computed at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.ops.ranking.scorer import Scorer


@dataclass(frozen=True)
class SpanScorer:
    """A scorer whose query q scores candidates first[q]..last[q] - 1; int64 [Q] each."""

    scorer: Scorer
    first: Int64
    last: Int64

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] the scores, -inf outside of the spans."""
        low = max(start, int(self.first.min()))
        high = min(stop, int(self.last.max()))
        if low >= high:
            one = self.scorer.block(start, start + 1)  # of the right kind, on the right device
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

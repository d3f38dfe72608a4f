"""Restrict the candidates: to a contiguous range for each query, or to a set for all.

In a typed graph the nodes of a type have consecutive ids, so the candidates of a query are a range.
Scores of all others are -inf, and blocks outside of the ranges are not computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import KnowledgeGraph
from hasten.ops.ranking.scorer import Scorer


def ranges_of(graph: KnowledgeGraph, relation: Int64) -> tuple[Int64, Int64] | None:
    """[Q] first candidate of each query and the end of its range; None if the graph is not typed.

    relation: int64 [Q], of the queries; r + R asks for heads.
    """
    if not graph.typed:
        return None
    types = NodeTypes.of(graph)
    wanted = np.concatenate([types.target, types.source])[relation]
    return types.offsets[wanted], types.offsets[wanted + 1]


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


@dataclass(frozen=True)
class SubsetScorer:
    """A scorer that restricts all queries to a set of candidates. candidates: bool [N]."""

    scorer: Scorer
    candidates: NDArray[np.bool_]

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] scores, -inf for all other items."""
        scores = self.scorer.block(start, stop)
        others = torch.from_numpy(~self.candidates[start:stop]).to(scores.device)
        return scores.masked_fill(others, -torch.inf)

"""Restrict the candidates: to a contiguous range for each query, or to a set for all.

In a typed graph the nodes of a type have consecutive ids, so the candidates of a query are a range.
Scores of all others are -inf, and blocks outside of the ranges are not computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
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
    types_of_answers = np.concatenate([types.target, types.source])[relation]
    return types.offsets[types_of_answers], types.offsets[types_of_answers + 1]


@dataclass(frozen=True, eq=False)
class Ranges:
    """The first candidate of each query and the end of its range.

    start, stop: int64 [Q], on the host; both: int64 [2, Q], the same for the device.
    """

    start: Int64
    stop: Int64
    both: Tensor

    @classmethod
    def of(cls, start: Int64, stop: Int64) -> Ranges:
        return cls(start, stop, torch.from_numpy(np.stack([start, stop])))

    def part(self, first: int, last: int) -> Ranges:
        """Those of the queries from first to last - 1."""
        return Ranges(self.start[first:last], self.stop[first:last], self.both[:, first:last])


@dataclass(frozen=True)
class RangeScorer:
    """A scorer that restricts each query to a range of candidates, from start to stop - 1."""

    scorer: Scorer
    ranges: Ranges

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] scores, -inf outside of the ranges."""
        low = max(start, int(self.ranges.start.min()))
        high = min(stop, int(self.ranges.stop.max()))
        if low >= high:
            one = self.scorer.block(start, start + 1)  # for its dtype and device
            return one.new_full((len(one), stop - start), -torch.inf)
        inner = self.scorer.block(low, high)
        candidates = torch.arange(low, high, device=inner.device)
        starts, stops = self.ranges.both.to(inner.device)[:, :, None]
        inner = inner.masked_fill((candidates < starts) | (candidates >= stops), -torch.inf)
        if (low, high) == (start, stop):
            return inner
        scores = inner.new_full((len(inner), stop - start), -torch.inf)
        scores[:, low - start : high - start] = inner
        return scores


@dataclass(frozen=True)
class SubsetScorer:
    """A scorer that restricts all queries to a set of candidates. others: bool [N], not in it."""

    scorer: Scorer
    others: Tensor

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] scores, -inf for all other items."""
        scores = self.scorer.block(start, stop)
        return scores.masked_fill(self.others[start:stop], -torch.inf)

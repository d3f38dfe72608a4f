"""Attention logits of the edges of a graph with relations, grouped by relation (KGAT, eq. 4).

``l(h, r, t) = (e_t W_r) · tanh(e_h W_r + e_r)``. A relation's matrix meets every node that stands
at an end of its edges once, not every edge: two products a relation, then one product of two
gathered rows an edge. Which nodes those are is found once, for the graph does not change. Where a
relation has more tails than heads, ``e_t · (W_r tanh(...))`` is the same with both products over
the heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hasten.data.tables import Int64

#: elements of gathered rows that are held at once: both fit the second-level cache
_GATHERED = 1 << 17


@dataclass(frozen=True, eq=False)
class Span:
    """The edges of one relation, from start to stop in the order of relations.

    heads: int64, the distinct ones; tails: the distinct ones, or None where there are more of them.
    """

    relation: int
    start: int
    stop: int
    heads: Tensor
    tails: Tensor | None


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """Edges in the order of their relations. place: int64 [E], where each edge of the graph is.

    head: int32 [E], which of the span's heads; tail: int32 [E], which of its tails, or the node
    itself where it has none.
    """

    place: Tensor
    head: Tensor
    tail: Tensor
    spans: tuple[Span, ...]

    @classmethod
    def build(cls, head: Int64, relation: Int64, tail: Int64) -> RelationEdges:
        # numpy sorts 16 bits by radix
        small = relation.astype(np.uint16) if relation.max(initial=0) < 2**16 else relation
        order = np.argsort(small, kind="stable")
        kinds, starts = np.unique(relation[order], return_index=True)
        stops = [*starts[1:].tolist(), len(order)]
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        count = int(max(head.max(initial=-1), tail.max(initial=-1))) + 1
        heads = torch.from_numpy(head[order].astype(np.int32))
        tails = torch.from_numpy(tail[order].astype(np.int32))
        spans = []
        for kind, start, stop in zip(kinds.tolist(), starts.tolist(), stops, strict=True):
            own, heads[start:stop] = _occurring(heads[start:stop], count)
            reached, which = _occurring(tails[start:stop], count)
            fewer = len(reached) <= len(own)
            if fewer:
                tails[start:stop] = which
            spans.append(Span(kind, start, stop, own, reached if fewer else None))
        return cls(torch.from_numpy(place), heads, tails, tuple(spans))

    def to(self, device: torch.device) -> RelationEdges:
        spans = tuple(
            replace(
                span,
                heads=span.heads.to(device),
                tails=None if span.tails is None else span.tails.to(device),
            )
            for span in self.spans
        )
        return RelationEdges(
            self.place.to(device), self.head.to(device), self.tail.to(device), spans
        )


@torch.no_grad()
def relation_attention(
    edges: RelationEdges, nodes: Tensor, relations: Tensor, weights: Tensor
) -> Tensor:
    """[E] logits in the order of the graph, float32, without gradient.

    nodes: [n, D]; relations: [R, K]; weights: [R, D, K].
    """
    logits = nodes.new_empty(len(edges.place))
    step = max(1, _GATHERED // weights.shape[2])
    for span in edges.spans:
        matrix = weights[span.relation]
        head, tail = edges.head[span.start : span.stop], edges.tail[span.start : span.stop]
        own = nodes.index_select(0, span.heads)
        moved = torch.addmm(relations[span.relation], own, matrix).tanh_()
        if span.tails is None:
            moved, reached = moved @ matrix.T, nodes
        else:
            reached = nodes.index_select(0, span.tails) @ matrix
        found = logits[span.start : span.stop]
        for first in range(0, len(found), step):
            part = slice(first, first + step)
            left = moved.index_select(0, head[part])
            left *= reached.index_select(0, tail[part])
            torch.sum(left, 1, out=found[part])
    return logits.index_select(0, edges.place)


def relation_attention_reference(
    head: Tensor, relation: Tensor, tail: Tensor, nodes: Tensor, relations: Tensor, weights: Tensor
) -> Tensor:
    """The same, one edge after the other."""
    found = [
        (nodes[t] @ weights[r]) @ torch.tanh(nodes[h] @ weights[r] + relations[r])
        for h, r, t in zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True)
    ]
    return torch.stack(found)


def _occurring(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The distinct ids, int64, and which of them each is, int32."""
    present = torch.zeros(count, dtype=torch.bool, device=ids.device)
    present[ids] = True
    place = torch.cumsum(present, 0, dtype=torch.int32) - 1
    return torch.nonzero(present).view(-1), place.index_select(0, ids)

"""Attention logits of the edges of a graph with relations, grouped by relation (KGAT, eq. 4).

``l(h, r, t) = (e_t W_r) · tanh(e_h W_r + e_r)``. A relation's matrix meets every node that stands
at an end of its edges once, not every edge: two products a relation, then one product of two rows
an edge, read where they are. Which nodes those are is found once, for the graph does not change.
Where a relation has more tails than heads, ``e_t · (W_r tanh(...))`` is the same with both products
over the heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.ops.graph.row_products import row_products

#: rows that are multiplied at a time on the CPU: what lies between fits the second-level cache
_ROWS_CPU = 2048


@dataclass(frozen=True, eq=False)
class Span:
    """The edges of one relation, from start to stop in the order of relations.

    heads: int64 [H], the distinct ones, ascending; offsets: int32 [H + 1], where the edges of each
    begin within the span; tails: the distinct ones, or None where there are more of them.
    """

    relation: int
    start: int
    stop: int
    heads: Tensor
    offsets: Tensor
    tails: Tensor | None


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """Edges in the order of their relations. place: int64 [E], where each edge of the graph is.

    tail: int32 [E], which of its span's tails, or the node itself where it has none.
    """

    place: Tensor
    tail: Tensor
    spans: tuple[Span, ...]

    @classmethod
    def build(cls, head: Int64, relation: Int64, tail: Int64) -> RelationEdges:
        """From edges in the order of their heads."""
        assert np.all(head[1:] >= head[:-1]), "edges must come head by head"
        # numpy sorts 16 bits by radix
        small = relation.astype(np.uint16) if relation.max(initial=0) < 2**16 else relation
        order = np.argsort(small, kind="stable")
        kinds, starts = np.unique(relation[order], return_index=True)
        stops = [*starts[1:].tolist(), len(order)]
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        count = int(max(head.max(initial=-1), tail.max(initial=-1))) + 1
        heads = head[order]
        tails = torch.from_numpy(tail[order].astype(np.int32))
        spans = []
        for kind, start, stop in zip(kinds.tolist(), starts.tolist(), stops, strict=True):
            own, first = np.unique(heads[start:stop], return_index=True)
            offsets = torch.from_numpy(np.append(first, stop - start).astype(np.int32))
            reached, which = _occurring(tails[start:stop], count)
            fewer = len(reached) <= len(own)
            if fewer:
                tails[start:stop] = which
            found = torch.from_numpy(own), offsets, reached if fewer else None
            spans.append(Span(kind, start, stop, *found))
        return cls(torch.from_numpy(place), tails, tuple(spans))

    def to(self, device: torch.device) -> RelationEdges:
        spans = tuple(
            replace(
                span,
                heads=span.heads.to(device),
                offsets=span.offsets.to(device),
                tails=None if span.tails is None else span.tails.to(device),
            )
            for span in self.spans
        )
        return RelationEdges(self.place.to(device), self.tail.to(device), spans)


@torch.no_grad()
def relation_attention(
    edges: RelationEdges, nodes: Tensor, relations: Tensor, weights: Tensor
) -> Tensor:
    """[E] logits in the order of the graph, float32, without gradient.

    nodes: [n, D]; relations: [R, K]; weights: [R, D, K].
    """
    logits = nodes.new_empty(len(edges.place))
    for span in edges.spans:
        matrix, relation = weights[span.relation], relations[span.relation]
        tail = edges.tail[span.start : span.stop]
        if span.tails is None:
            moved, reached = _moved(nodes, span.heads, matrix, relation, matrix.T), nodes
        else:
            moved = _moved(nodes, span.heads, matrix, relation)
            reached = nodes.new_empty(len(span.tails), len(relation))
            for part in _parts(span.tails):
                torch.mm(nodes.index_select(0, span.tails[part]), matrix, out=reached[part])
        logits[span.start : span.stop] = row_products(span.offsets, tail, moved, reached)
    return logits.index_select(0, edges.place)


def _moved(
    nodes: Tensor, ids: Tensor, matrix: Tensor, relation: Tensor, then: Tensor | None = None
) -> Tensor:
    """[S, K] ``tanh(e W + r)`` of these nodes, or [S, D] that times a further matrix."""
    out = nodes.new_empty(len(ids), matrix.shape[1] if then is None else then.shape[1])
    for part in _parts(ids):
        own = nodes.index_select(0, ids[part])
        # tanh x = 2 sigmoid(2x) - 1, in a third of the time on a CPU
        turned = out[part] if then is None else out.new_empty(len(own), len(relation))
        torch.addmm(relation, own, matrix, beta=2, alpha=2, out=turned).sigmoid_().mul_(2).sub_(1)
        if then is not None:
            torch.mm(turned, then, out=out[part])
    return out


def _parts(ids: Tensor) -> list[slice]:
    step = _ROWS_CPU if ids.device.type == "cpu" else max(1, len(ids))
    return [slice(start, start + step) for start in range(0, len(ids), step)]


def _occurring(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The distinct ids, int64, and which of them each is, int32."""
    present = torch.zeros(count, dtype=torch.bool, device=ids.device)
    present[ids] = True
    place = torch.cumsum(present, 0, dtype=torch.int32) - 1
    return torch.nonzero(present).view(-1), place.index_select(0, ids)

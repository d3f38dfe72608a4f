"""Attention logits of the edges of a graph with relations, grouped by relation (KGAT, eq. 4).

``l(h, r, t) = (e_t W_r) · tanh(e_h W_r + e_r)``. A relation's matrix meets every node that stands
at an end of its edges once, not every edge: two products a relation, then one product of two
gathered rows an edge. Where a relation has more tails than heads, ``e_t · (W_r tanh(...))`` is the
same with both products over the heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.data.tables import Int64

#: elements of gathered rows that are held at once: both fit the second-level cache
_GATHERED = 1 << 17


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """Edges in the order of their relations. place: int64 [E], where each edge of the graph is.

    head, tail: int32 [E]; spans: (relation, start, stop) of those that have edges.
    """

    place: Tensor
    head: Tensor
    tail: Tensor
    spans: tuple[tuple[int, int, int], ...]

    @classmethod
    def build(cls, head: Int64, relation: Int64, tail: Int64) -> RelationEdges:
        # numpy sorts 16 bits by radix
        small = relation.astype(np.uint16) if relation.max(initial=0) < 2**16 else relation
        order = np.argsort(small, kind="stable")
        kinds, starts = np.unique(relation[order], return_index=True)
        stops = [*starts[1:].tolist(), len(order)]
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return cls(
            torch.from_numpy(place),
            torch.from_numpy(head[order].astype(np.int32)),
            torch.from_numpy(tail[order].astype(np.int32)),
            tuple(zip(kinds.tolist(), starts.tolist(), stops, strict=True)),
        )

    def to(self, device: torch.device) -> RelationEdges:
        return RelationEdges(
            self.place.to(device), self.head.to(device), self.tail.to(device), self.spans
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
    for relation, start, stop in edges.spans:
        matrix = weights[relation]
        heads, head = _occurring(edges.head[start:stop], len(nodes))
        tails, tail = _occurring(edges.tail[start:stop], len(nodes))
        moved = torch.addmm(relations[relation], nodes.index_select(0, heads), matrix).tanh_()
        if len(heads) < len(tails):
            moved, reached, tail = moved @ matrix.T, nodes, edges.tail[start:stop]
        else:
            reached = nodes.index_select(0, tails) @ matrix
        for first in range(0, stop - start, step):
            part = slice(first, first + step)
            left = moved.index_select(0, head[part])
            left *= reached.index_select(0, tail[part])
            torch.sum(left, 1, out=logits[start:stop][part])
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

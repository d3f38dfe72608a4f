"""Attention logits of the edges of a knowledge graph, grouped by relation (KGAT, equation 4).

``l(h, r, t) = (e_t W_r) · tanh(e_h W_r + e_r)``. The matrix of a relation is multiplied with every
distinct node at an end of its edges, not with every edge: two matrix products per relation, then
one inner product per edge. The distinct nodes are found once, because the graph does not change. If
a relation has more distinct tails than heads, ``e_t · (W_r tanh(...))`` gives the same with both
products over the heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.ops.graph.graph_shard import GraphShard
from hasten.ops.graph.offsets import offset_tensor
from hasten.ops.graph.row_products import row_products
from hasten.ops.transfer import to_device

#: rows per matrix product on a CPU, so that intermediate results fit into the L2 cache
_ROWS_CPU = 2048


@dataclass(frozen=True, eq=False)
class Span:
    """The edges of one relation, from start to stop in the order of relations.

    heads: int64 [H] distinct heads, ascending. offsets: [H + 1] of the edges of each head
    within the span. tails: distinct tails, or None if they are more than the heads.
    """

    relation: int
    start: int
    stop: int
    heads: Tensor
    offsets: Tensor
    tails: Tensor | None


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """Edges sorted by relation. position: int64 [E], position of each edge of the graph.

    tail: int32 [E], index in the tails of its span, or the node if the span has none.
    """

    position: Tensor
    tail: Tensor
    spans: tuple[Span, ...]

    @classmethod
    def build(cls, head: Int64, relation: Int64, tail: Int64) -> RelationEdges:
        """From edges sorted by head."""
        assert np.all(head[1:] >= head[:-1]), "edges must come head by head"
        # numpy sorts 16 bits by radix
        small = relation.astype(np.uint16) if relation.max(initial=0) < 2**16 else relation
        order = np.argsort(small, kind="stable")
        kinds, starts = np.unique(relation[order], return_index=True)
        stops = [*starts[1:].tolist(), len(order)]
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        count = int(max(head.max(initial=-1), tail.max(initial=-1))) + 1
        heads = head[order]
        tails = torch.from_numpy(tail[order].astype(np.int32))
        spans = []
        for kind, start, stop in zip(kinds.tolist(), starts.tolist(), stops, strict=True):
            distinct_heads, first = np.unique(heads[start:stop], return_index=True)
            offsets = offset_tensor(np.append(first, stop - start))
            reached, which = _distinct(tails[start:stop], count)
            fewer = len(reached) <= len(distinct_heads)
            if fewer:
                tails[start:stop] = which
            nodes = torch.from_numpy(distinct_heads), offsets, reached if fewer else None
            spans.append(Span(kind, start, stop, *nodes))
        return cls(torch.from_numpy(position), tails, tuple(spans))

    def relations(self) -> Tensor:
        """int64 [E] the relation of each edge of the graph, on the host."""
        counts = torch.tensor([span.stop - span.start for span in self.spans])
        kinds = torch.tensor([span.relation for span in self.spans])
        return kinds.repeat_interleave(counts)[self.position.cpu()]

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
        return RelationEdges(self.position.to(device), self.tail.to(device), spans)


@torch.no_grad()
def relation_attention(
    edges: RelationEdges, nodes: Tensor, relations: Tensor, weights: Tensor
) -> Tensor:
    """[E] logits in the order of the graph, float32, without gradient.

    nodes: [n, D]; relations: [R, K]; weights: [R, D, K].
    """
    logits = nodes.new_empty(len(edges.position))
    for span in edges.spans:
        matrix, relation = weights[span.relation], relations[span.relation]
        tail = edges.tail[span.start : span.stop]
        if span.tails is None:
            translated, reached = _translated(nodes, span.heads, matrix, relation, matrix.T), nodes
        else:
            translated = _translated(nodes, span.heads, matrix, relation)
            reached = nodes.new_empty(len(span.tails), len(relation))
            for part in _parts(span.tails):
                torch.mm(nodes.index_select(0, span.tails[part]), matrix, out=reached[part])
        logits[span.start : span.stop] = row_products(span.offsets, tail, translated, reached)
    return logits.index_select(0, edges.position)


@dataclass(frozen=True, eq=False)
class HeadRelations:
    """The Q distinct (head, relation) of edges that are sorted by both.

    offsets: [Q + 1] of their edges. spans: of each relation the numbers of its pairs, int64, and
    their heads, int64.
    """

    offsets: Tensor
    spans: tuple[tuple[int, Tensor, Tensor], ...]

    @classmethod
    def build(cls, head: Int64, relation: Int64) -> HeadRelations:
        """From the edges of some heads, counted from 0."""
        new = np.ones(len(head), bool)
        new[1:] = (head[1:] != head[:-1]) | (relation[1:] != relation[:-1])
        first = np.flatnonzero(new)
        kind, heads = relation[first], torch.from_numpy(head[first])
        numbers = [(int(r), torch.from_numpy(np.flatnonzero(kind == r))) for r in np.unique(kind)]
        spans = tuple((r, number, heads[number]) for r, number in numbers)
        return cls(offset_tensor(np.append(first, len(head))), spans)


@torch.no_grad()
def sharded_attention(
    part: GraphShard, queries: HeadRelations, nodes: Tensor, relations: Tensor, weights: Tensor
) -> Tensor:
    """[E'] the logits of the edges whose heads this process holds, in the order of the graph.

    nodes: [R, D] of this process. Both products are over the heads, ``e_t · (W_r tanh(...))``, so
    only the vectors of tails come from other processes, some columns at a time. A collective.
    """
    queries = to_device(queries, nodes.device)
    turned = nodes.new_empty(len(queries.offsets) - 1, nodes.shape[1])
    for relation, numbers, heads in queries.spans:
        matrix = weights[relation]
        turned[numbers] = _translated(nodes, heads, matrix, relations[relation], matrix.T)
    logits = nodes.new_zeros(len(part.rows.columns))
    for columns, gathered in part.gathered(nodes):
        of_heads = turned[:, columns].contiguous()
        logits += row_products(queries.offsets, part.rows.columns, of_heads, gathered)
        del gathered  # before the next columns are gathered
    return logits


def _translated(
    nodes: Tensor, ids: Tensor, matrix: Tensor, relation: Tensor, then: Tensor | None = None
) -> Tensor:
    """[S, K] ``tanh(e W + r)`` of these nodes, or [S, D] its product with another matrix."""
    out = nodes.new_empty(len(ids), matrix.shape[1] if then is None else then.shape[1])
    for part in _parts(ids):
        rows = nodes.index_select(0, ids[part])
        # tanh x = 2 sigmoid(2x) - 1, three times as fast on a CPU
        turned = out[part] if then is None else out.new_empty(len(rows), len(relation))
        torch.addmm(relation, rows, matrix, beta=2, alpha=2, out=turned).sigmoid_().mul_(2).sub_(1)
        if then is not None:
            torch.mm(turned, then, out=out[part])
    return out


def _parts(ids: Tensor) -> list[slice]:
    step = _ROWS_CPU if ids.device.type == "cpu" else max(1, len(ids))
    return [slice(start, start + step) for start in range(0, len(ids), step)]


def _distinct(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The distinct ids (int64), and the index of each id in them (int32)."""
    present = torch.zeros(count, dtype=torch.bool, device=ids.device)
    present[ids] = True
    position = torch.cumsum(present, 0, dtype=torch.int32) - 1
    return torch.nonzero(present).view(-1), position.index_select(0, ids)

"""Multi-head attention over typed edges, forward and backward, without a tensor per edge.

For an edge e = (j -> i) of relation r and head h (Hu et al. 2020, equations 3-5; the prior of the
relation and 1/sqrt(d) are in the maps ``a``):

    logit[e, h] = k[j, h] a[r, h] · q[i, h]
    alpha[:, h] = softmax of the logits over all edges into i, whatever their relation
    out[i, h]   = sum over e of alpha[e, h] (v[j, h] m[r, h])

A map is applied once per row, on the side of a relation with fewer rows: to its sources, or to its
destinations (``(k a) · q = k · (q aᵀ)``, and the sum of v before the map). Relations are processed
one after the other, so only one relation's mapped rows are held beside the output; the backward
pass recomputes them. The gradient of the softmax needs no second pass: the sum of
``alpha · d alpha`` over the edges into i is ``out[i] · d out[i]``.

Shapes: E edges, M destinations, N sources, R relations, H heads, d width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.attention.pair_attention import pair_attention
from hasten.ops.dtypes import accumulation_dtype, autocast_dtype
from hasten.ops.graph.edge_pairs import EdgePairs
from hasten.ops.graph.typed_edges import Relation, TypedEdges

#: elements of gathered rows held at once
_GATHERED = 1 << 19


def edge_attention(
    edges: TypedEdges | EdgePairs,
    query: Tensor,
    key_value: Tensor,
    attention: Tensor,
    message: Tensor,
    keep: Tensor | None = None,
) -> Tensor:
    """[M, H·d] attention of every destination over its edges; zeros for destinations without edges.

    query: [M, H·d]; key_value: [N, 2·H·d], keys beside values; attention, message: [R, H, d, d],
    the maps; keep: bool [E] in the order of ``edges``, the edges to use. The form of the edges
    follows from their device (:meth:`TypedEdges.to`): on a CPU relations are processed one after
    the other, elsewhere all at once (:mod:`.pair_attention`).

    The result and what is kept for the backward pass follow autocast, but on a CPU matrix products
    do not: oneDNN would compile bf16 code for the rows of every relation. Sums, softmax and its
    gradient are at least float32.
    """
    if isinstance(edges, EdgePairs):
        return pair_attention(edges, query, key_value, attention, message, keep)
    kind = autocast_dtype(query)
    key, value = key_value.chunk(2, 1)
    out: Tensor = _EdgeAttention.apply(  # type: ignore[no-untyped-call]
        edges, keep, kind, query, key, value, attention, message
    )
    return out


class _EdgeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        edges: TypedEdges,
        keep: Tensor | None,
        kind: torch.dtype,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention: Tensor,
        message: Tensor,
    ) -> Tensor:
        q, k, v, a, m = (t.detach().to(kind) for t in (query, key, value, attention, message))
        heads = a.shape[1]
        logits = q.new_empty(heads, len(edges), dtype=accumulation_dtype(q))
        for each in edges.relations:
            left, right = _sides(each, q, k, a)
            _dots(each, left, right, logits[:, each.first : each.last])
        alpha = _softmax_(logits, edges, keep).to(kind)
        del logits
        out = torch.zeros_like(q, dtype=accumulation_dtype(q))
        for each in edges.relations:
            weights = alpha[:, each.first : each.last]
            table = v.index_select(0, each.sources)
            if each.by_source:
                rows = _sums(each, weights, _mapped(table, m[each.number]))
            else:
                rows = _mapped(_sums(each, weights, table), m[each.number])
            out.index_add_(0, each.targets, rows.to(out.dtype))
        out = out.to(kind)
        ctx.save_for_backward(q, k, v, a, m, alpha, out)
        ctx.edges = edges
        ctx.kinds = [t.dtype for t in (query, key, value, attention, message)]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, a, m, alpha, out = ctx.saved_tensors
        edges = ctx.edges
        heads, width = a.shape[1:3]
        full = accumulation_dtype(q)
        grad = grad.contiguous()
        # the sum of alpha · d alpha over the edges into a node [H, M]
        inner = (grad.to(full) * out).view(-1, heads, width).sum(-1).T.contiguous()
        g = grad.to(q.dtype)
        dq, dk, dv = (torch.zeros_like(t, dtype=full) for t in (q, k, v))
        da, dm = (torch.zeros_like(t, dtype=full) for t in (a, m))
        for each in edges.relations:
            span, r = slice(each.first, each.last), each.number
            weights = alpha[:, span]
            values, grads = v.index_select(0, each.sources), g.index_select(0, each.targets)
            slope = weights.new_empty(weights.shape, dtype=full)
            if each.by_source:
                mapped = _mapped(values, m[r])
                _dots(each, grads, mapped, slope)
                back = _sums_t(each, weights, grads)
                dv.index_add_(0, each.sources, _mapped(back, m[r].mT).to(full))
                dm[r] = _outer(values, back, heads)
            else:
                mapped = _mapped(grads, m[r].mT)
                _dots(each, mapped, values, slope)
                dv.index_add_(0, each.sources, _sums_t(each, weights, mapped).to(full))
                dm[r] = _outer(_sums(each, weights, values), grads, heads)
            slope -= inner.index_select(1, edges.target[span])
            slope *= weights
            keys, queries = k.index_select(0, each.sources), q.index_select(0, each.targets)
            if each.by_source:
                mapped = _mapped(keys, a[r])
                dq.index_add_(0, each.targets, _sums(each, slope, mapped).to(full))
                back = _sums_t(each, slope, queries)
                dk.index_add_(0, each.sources, _mapped(back, a[r].mT).to(full))
                da[r] = _outer(keys, back, heads)
            else:
                mapped = _mapped(queries, a[r].mT)
                dk.index_add_(0, each.sources, _sums_t(each, slope, mapped).to(full))
                back = _sums(each, slope, keys)
                dq.index_add_(0, each.targets, _mapped(back, a[r]).to(full))
                da[r] = _outer(back, queries, heads)
        totals = [dm, da, dv, dk, dq]
        del dq, dk, dv, da, dm
        gradients = (totals.pop().to(kind) for kind in ctx.kinds)  # one after the other
        return None, None, None, *gradients


def _sides(each: Relation, q: Tensor, k: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the targets and of the sources whose products are the logits."""
    queries, keys = q.index_select(0, each.targets), k.index_select(0, each.sources)
    if each.by_source:
        return queries, _mapped(keys, maps[each.number])
    return _mapped(queries, maps[each.number].mT), keys


def _mapped(rows: Tensor, maps: Tensor) -> Tensor:
    """[B, H·d]: the columns of each head, multiplied by the head's map [H, d, d]."""
    heads, width = maps.shape[:2]
    out = _bmm(rows.view(-1, heads, width).transpose(0, 1), maps)
    # with a width of 1, reshape returns a view that is not contiguous
    return out.transpose(0, 1).reshape(-1, heads * width).contiguous().to(rows.dtype)


def _outer(left: Tensor, right: Tensor, heads: int) -> Tensor:
    """[H, d, d] the gradient of maps: for each head the sum over rows of left ⊗ right."""
    parts = [t.view(len(t), heads, -1).transpose(0, 1) for t in (left, right)]
    return _bmm(parts[0].mT, parts[1])


def _bmm(left: Tensor, right: Tensor) -> Tensor:
    full = accumulation_dtype(left)
    if left.dtype == full:
        return torch.bmm(left, right)
    with torch.autocast("cpu", enabled=False):
        return torch.bmm(left.to(full), right.to(full))


def _chunks(count: int, width: int) -> Iterator[slice]:
    step = max(1, _GATHERED // max(1, width))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _dots(each: Relation, targets: Tensor, sources: Tensor, out: Tensor) -> None:
    """out[h, e] = targets[row of e, h] · sources[column of e, h]."""
    heads, width = len(out), targets.shape[1]
    for part in _chunks(len(each.row), width):
        left = targets.index_select(0, each.row[part])
        left *= sources.index_select(0, each.column[part])
        sums = left.view(-1, heads, width // heads).sum(-1, dtype=out.dtype)
        out[:, part] = sums.T


def _sums(each: Relation, weights: Tensor, sources: Tensor) -> Tensor:
    """[targets, H·d]: for every destination the weighted sum of its source rows."""
    return _weighted(each.offsets, each.column, weights, sources)


def _sums_t(each: Relation, weights: Tensor, targets: Tensor) -> Tensor:
    """[sources, H·d]: for every source the weighted sum of its destination rows."""
    row = each.row.index_select(0, each.order)
    return _weighted(each.offsets_t, row, weights.index_select(1, each.order), targets)


def _weighted(offsets: Tensor, place: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    """[segments, H·d] the weighted sum of each segment's rows, with weights per head [H, E]."""
    heads, count = weights.shape
    segments, width = len(offsets) - 1, rows.shape[1] // heads
    head = torch.arange(heads, device=rows.device)[:, None]
    bags = F.embedding_bag(
        (place * heads + head).view(-1),
        rows.view(-1, width),
        (offsets[:-1] + head * count).view(-1),
        mode="sum",
        per_sample_weights=weights.reshape(-1).to(rows.dtype),
    )
    bags = bags.view(heads, segments, width).transpose(0, 1)
    return bags.reshape(segments, heads * width).contiguous()


def _softmax_(logits: Tensor, edges: TypedEdges, keep: Tensor | None) -> Tensor:
    """[H, E] softmax over the edges into each node, in place; 0 for edges that are not used."""
    if keep is not None:
        logits.masked_fill_(~keep, -torch.inf)
    nodes, target = edges.shape[0], edges.target.expand_as(logits)
    top = logits.new_full((len(logits), nodes), -torch.inf).scatter_reduce_(
        1, target, logits, "amax"
    )
    top.masked_fill_(~torch.isfinite(top), 0.0)
    logits -= top.gather(1, target)
    logits.exp_()
    total = logits.new_zeros(len(logits), nodes).index_add_(1, edges.target, logits)
    total.masked_fill_(total == 0, 1.0)
    logits /= total.gather(1, target)
    return logits

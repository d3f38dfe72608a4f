"""Multi-head attention over typed edges, all relations at once, with few kernel launches.

The same function as :mod:`.edge_attention`. Keys and values are mapped once per pair of a relation
and a source, for all relations by one batched product (:mod:`hasten.ops.graph.edge_pairs`), and
every edge reads the mapped rows of its pair: the arrangement of PyTorch Geometric's ``HGTConv``.
Rows of edges are gathered in chunks, or, where Triton runs and heads fit, read by its kernels
(:mod:`hasten.ops.triton.edge_attention`). The backward pass maps keys and values again.

Shapes: E edges, M destinations, N sources, S slots, R relations, H heads, d width of a head. Within
the operation, heads are the first dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.ops.dtypes import accumulation_dtype, autocast_dtype
from hasten.ops.edge_segments import EdgeSegments
from hasten.ops.graph.edge_pairs import BLOCK, EdgePairs
from hasten.ops.triton.choice import LARGEST_PADDED_WIDTH, uses_triton

#: elements of gathered rows held at once
_GATHERED = 1 << 26


def pair_attention(
    edges: EdgePairs,
    query: Tensor,
    key_value: Tensor,
    attention: Tensor,
    message: Tensor,
    keep: Tensor | None = None,
) -> Tensor:
    """[M, H·d] attention of every destination over its edges; zeros for destinations without edges.

    query: [M, H·d]; key_value: [N, 2·H·d]; attention, message: [R, H, d, d], the maps; keep: bool
    [E] in the order of ``edges``, the edges to use. Matrix products follow autocast; sums, softmax
    and its gradient are at least float32.
    """
    kind, heads = autocast_dtype(query), attention.shape[1]
    maps = torch.cat([attention, message], 1).to(kind)
    segments = edges.segments if _takes_kernels(query, heads, kind) else None
    output: Tensor = _PairAttention.apply(  # type: ignore[no-untyped-call]
        edges, keep, heads, segments, query.to(kind), key_value.to(kind), maps
    )
    return output


class _PairAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        edges: EdgePairs,
        keep: Tensor | None,
        heads: int,
        segments: tuple[EdgeSegments, EdgeSegments] | None,
        query: Tensor,
        rows: Tensor,
        maps: Tensor,
    ) -> Tensor:
        full = accumulation_dtype(query)
        *_, mapped = _mapped(edges, rows, maps)
        ctx.edges, ctx.heads, ctx.keep, ctx.segments = edges, heads, keep, segments
        if segments is not None:
            from hasten.ops.triton import edge_attention  # noqa: PLC0415

            out, lse = edge_attention.forward(segments[0], keep, query, mapped)
            ctx.save_for_backward(query, rows, maps, lse, out)
            return out
        keys, values = mapped.chunk(2)
        queries = _by_head(query, heads)
        logits = query.new_empty(heads, len(edges), dtype=full)
        for part in _chunks(edges, query):
            left = queries.index_select(1, edges.target[part])
            left *= keys.index_select(1, edges.slot[part])
            torch.sum(left, -1, dtype=full, out=logits[:, part])
        alpha = _softmax(logits, edges, keep).to(query.dtype)
        out = torch.zeros_like(query, dtype=full)
        for part in _chunks(edges, query):
            picked = values.index_select(1, edges.slot[part])
            picked *= alpha[:, part, None]
            _by_head(out, heads).index_add_(1, edges.target[part], picked.to(full))
        out = out.to(query.dtype)
        ctx.save_for_backward(query, rows, maps, alpha, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, rows, maps, saved, out = ctx.saved_tensors
        edges, heads, full = ctx.edges, ctx.heads, accumulation_dtype(query)
        picked, of_blocks, mapped = _mapped(edges, rows, maps)
        if ctx.segments is not None:
            from hasten.ops.triton import edge_attention  # noqa: PLC0415

            inputs = ctx.segments, ctx.keep, query, mapped, out, saved, grad
            of_query, of_mapped = edge_attention.backward(*inputs)
            of_rows, of_maps = _zeros([rows, maps], full)
        else:
            of_query, of_rows, of_maps = _zeros([query, rows, maps], full)
            of_mapped = _add_gradients(edges, query, mapped, saved, out, grad, of_query)
        upper = of_mapped.view(-1, BLOCK, of_mapped.shape[2])
        blocks = torch.bmm(picked.view_as(upper).mT, upper).view_as(of_blocks)
        of_maps.transpose(0, 1).index_add_(1, edges.relation, blocks.to(full))
        lower = torch.bmm(upper, of_blocks.view(-1, *of_blocks.shape[2:]).mT).view_as(picked)
        _by_head(of_rows, 2 * heads).index_add_(1, edges.source, lower.to(full))
        grads = of_query, of_rows, of_maps
        return None, None, None, None, *(each.to(query.dtype) for each in grads)


def _add_gradients(
    edges: EdgePairs,
    query: Tensor,
    mapped: Tensor,
    alpha: Tensor,
    out: Tensor,
    grad: Tensor,
    of_query: Tensor,
) -> Tensor:
    """The gradient of mapped [2H, S, d]; that of query [M, H·d] is added to ``of_query``."""
    heads, full = len(alpha), of_query.dtype
    # the sum of alpha · d alpha over the edges into a node [H, M]
    inner = _by_head(grad.to(full) * out, heads).sum(-1)
    ends = torch.cat([_by_head(each, heads) for each in (query, grad.to(query.dtype))])
    of_mapped = torch.zeros_like(mapped, dtype=full)
    for part in _chunks(edges, query):
        target, slot, weights = edges.target[part], edges.slot[part], alpha[:, part]
        sources, targets = mapped.index_select(1, slot), ends.index_select(1, target)
        slope = (targets[heads:] * sources[heads:]).sum(-1, dtype=full)
        slope -= inner.index_select(1, target)
        slope *= weights
        left = sources[:heads] * slope[..., None]
        _by_head(of_query, heads).index_add_(1, target, left.to(full))
        targets *= torch.cat([slope, weights])[..., None]
        of_mapped.index_add_(1, slot, targets.to(full))
    return of_mapped.to(query.dtype)


def _takes_kernels(query: Tensor, heads: int, kind: torch.dtype) -> bool:
    """Whether Triton's kernels attend, where edges have segments."""
    size = query.shape[1] // heads
    padded = math.prod(1 << (number - 1).bit_length() for number in (heads, size))
    fits = padded <= LARGEST_PADDED_WIDTH
    return fits and uses_triton("edge attention", query, size, kind, products=False)


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """[H, B, d] of [B, H·d], a view."""
    return rows.view(len(rows), heads, -1).transpose(0, 1)


def _zeros(shapes: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Zeros of these shapes, by one operation."""
    sizes = [each.numel() for each in shapes]
    parts = torch.split(shapes[0].new_zeros(sum(sizes), dtype=dtype), sizes)
    return [part.view(each.shape) for part, each in zip(parts, shapes, strict=True)]


def _mapped(edges: EdgePairs, rows: Tensor, maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of all slots [2H, S, d], the maps of all blocks [2H, S / BLOCK, d, d], products."""
    picked = _by_head(rows, maps.shape[1]).index_select(1, edges.source)
    of_blocks = maps.transpose(0, 1).index_select(1, edges.relation)
    blocks = picked.view(-1, BLOCK, picked.shape[2])
    mapped = torch.bmm(blocks, of_blocks.view(len(blocks), *of_blocks.shape[2:]))
    return picked, of_blocks, mapped.view_as(picked)


def _chunks(edges: EdgePairs, rows: Tensor) -> Iterator[slice]:
    """All edges, or as many at a time as their gathered rows may hold elements."""
    step = max(1, _GATHERED // max(1, rows.shape[1]))
    for start in range(0, len(edges), step):
        yield slice(start, min(start + step, len(edges)))


def _softmax(logits: Tensor, edges: EdgePairs, keep: Tensor | None) -> Tensor:
    """[H, E] softmax over the edges into each node; 0 for edges that are not used."""
    if keep is not None:
        logits = torch.where(keep, logits, -torch.inf)
    heads, nodes, target = len(logits), edges.shape[0], edges.target
    # no node has -inf, so the differences of unused edges are not NaN
    top = logits.new_full((heads, nodes), torch.finfo(logits.dtype).min)
    top.scatter_reduce_(1, target.expand_as(logits), logits, "amax")
    logits -= top.index_select(1, target)
    logits.exp_()
    # the largest term is 1, so this addend shows only where no edge is used
    tiny = torch.finfo(logits.dtype).tiny
    total = logits.new_full((heads, nodes), tiny).index_add_(1, target, logits)
    logits /= total.index_select(1, target)
    return logits

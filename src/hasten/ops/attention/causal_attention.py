"""Causal self-attention over ragged sequences laid out in buckets (see :mod:`hasten.ops.buckets`).

Vaswani et al. 2017, equation 1, with the future masked; softmax in float32. Padding follows the
real positions, so the causal mask hides it from every real query, and no padding mask is needed.

On a CPU with dropout one function computes all buckets, forward and backward: torch's own CPU
kernel has no dropout, and its fallback takes 12 ns per element for the mask. Queries are processed
in chunks that see only the keys up to their end, which saves nearly half the work of long
sequences. Gradients are written in place, without the concatenations of autograd. The backward pass
keeps the attention weights in the precision of the queries, and in a lower precision one bit of the
mask per weight. All products are in float32: the shapes of a chunk differ in every batch, and
oneDNN compiles bf16 code for every shape, which costs more than its products save.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.attention.head_chunks import HeadChunk, head_chunks
from hasten.ops.buckets import Bucket
from hasten.ops.dense.dropout import keep_bytes, mask_of, masks_of
from hasten.ops.dtypes import accumulation_dtype, upcast


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    buckets: Sequence[Bucket],
    heads: int,
    drop: float,
    training: bool,
) -> Tensor:
    """Attention output [T, D] of flat tokens.

    query, key, value: [T, D], the columns of each head adjacent; buckets: cover all T tokens; drop:
    dropout probability of the attention weights.
    """
    if query.device.type == "cpu" and training and drop > 0.0:
        out: Tensor = _BucketedAttention.apply(query, key, value, buckets, heads, drop)  # type: ignore[no-untyped-call]
        return out
    width = query.shape[1]
    parts = []
    # split instead of slices: its backward pass is one concatenation
    sizes = [bucket.rows * bucket.length for bucket in buckets]
    whole = (query, key, value)
    pieces = zip(*(torch.split(tensor, sizes) for tensor in whole), strict=True)
    for bucket, piece in zip(buckets, [whole] if len(buckets) == 1 else pieces, strict=True):
        shape = (bucket.rows, bucket.length, heads, width // heads)
        q, k, v = (tensor.view(shape).transpose(1, 2) for tensor in piece)
        attended = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=drop if training else 0.0
        )
        parts.append(attended.transpose(1, 2).reshape(-1, width))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def causal_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, buckets: Sequence[Bucket], heads: int
) -> Tensor:
    """The same as its equation, without dropout."""
    width = query.shape[1]
    parts = []
    for bucket in buckets:
        shape = (bucket.rows, bucket.length, heads, width // heads)
        q, k, v = (
            tensor[bucket.start : bucket.stop].view(shape).transpose(1, 2)
            for tensor in (query, key, value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        future = torch.ones(bucket.length, bucket.length, dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(future.to(query.device), -math.inf), dim=-1)
        parts.append((weights @ v).transpose(1, 2).reshape(-1, width))
    return torch.cat(parts)


def _future_mask(start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """[1, stop-start, stop]: 0 for keys that a query may see, otherwise -inf."""
    # torch.compile traces the function and warns about the cache
    make = _make_mask if torch.compiler.is_compiling() else _cached_mask
    return make(start, stop, dtype)


def _make_mask(start: int, stop: int, dtype: torch.dtype) -> Tensor:
    return torch.full((1, stop - start, stop), -math.inf, dtype=dtype).triu_(start + 1)


_cached_mask = lru_cache(maxsize=1024)(_make_mask)


class _BucketedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        buckets: Sequence[Bucket],
        heads: int,
        drop: float,
    ) -> Tensor:
        width = query.shape[1]
        scale = 1 / math.sqrt(width // heads)
        out = torch.empty_like(query)
        pieces = head_chunks(buckets, heads, width)
        cells, kind = [piece.cells for piece in pieces], accumulation_dtype(query)
        bits = keep_bytes(sum(map(math.prod, cells)), drop)
        if kind == query.dtype:  # the mask itself: faster than to expand its bits once more
            bits = mask_of(bits, torch.Size([sum(map(math.prod, cells))]), drop, kind)
        attention_weights = []
        with torch.autocast("cpu", enabled=False):
            for piece, mask in zip(pieces, masks_of(bits, cells, drop, kind), strict=True):
                scores = torch.baddbmm(
                    _future_mask(piece.queries.start, piece.queries.stop, kind),
                    upcast(piece.of_queries(query)),
                    upcast(piece.of_keys(key)).transpose(1, 2),
                    alpha=scale,
                )
                weights = torch.softmax(scores, dim=-1)
                _put(piece, out, weights * mask, upcast(piece.of_keys(value)))
                attention_weights.append(weights.to(query.dtype))
        ctx.pieces, ctx.cells, ctx.scale, ctx.drop = pieces, cells, scale, drop
        ctx.save_for_backward(query, key, value, bits, *attention_weights)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bits, *attention_weights = ctx.saved_tensors
        grads = grad_query, grad_key, grad_value = [torch.empty_like(query) for _ in range(3)]
        kind = accumulation_dtype(query)
        masks = masks_of(bits, ctx.cells, ctx.drop, kind)
        for piece, low, mask in zip(ctx.pieces, attention_weights, masks, strict=True):
            weights = low.to(kind)
            upper = upcast(piece.of_queries(grad_out))
            grad_weights = torch.bmm(upper, upcast(piece.of_keys(value)).transpose(1, 2))
            grad_scores = torch._softmax_backward_data(grad_weights.mul_(mask), weights, -1, kind)
            _put(piece, grad_query, grad_scores, upcast(piece.of_keys(key)))
            _add(piece, grad_value, weights * mask, upper)
            _add(piece, grad_key, grad_scores, upcast(piece.of_queries(query)))
        grad_query.mul_(ctx.scale)
        grad_key.mul_(ctx.scale)
        return *grads, None, None, None


def _put(piece: HeadChunk, total: Tensor, left: Tensor, right: Tensor) -> None:
    """``left @ right`` into the piece's queries of a [T, D] tensor.

    Into a contiguous part at once; into a strided one torch would multiply row by row.
    """
    part = piece.of_queries(total)
    if part.is_contiguous() and part.dtype == left.dtype:
        torch.bmm(left, right, out=part)
    else:
        part.copy_(torch.bmm(left, right))


def _add(piece: HeadChunk, total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``leftᵀ @ right`` to the rows of the keys that a piece sees, in a [T, D] tensor.

    The first chunk sees all keys and overwrites these rows; the others add.
    """
    part = piece.of_keys(total)
    turned = left.transpose(1, 2)
    if not piece.sees_all:
        part += torch.bmm(turned, right)
    elif part.is_contiguous() and part.dtype == left.dtype:
        torch.bmm(turned, right, out=part)
    else:
        part.copy_(torch.bmm(turned, right))

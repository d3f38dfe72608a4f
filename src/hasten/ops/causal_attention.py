"""Causal self-attention over ragged sequences laid out in buckets (see :mod:`hasten.ops.buckets`).

Because padding stands behind the real positions, the causal mask alone keeps every real query
from seeing it: packed, bucketed and padded computation agree, and no padding mask is built.
Vaswani et al. 2017, equation 1, with the future masked; softmax in float32.

On a CPU with dropout one function computes all buckets, forward and backward: torch's own CPU
kernel has no dropout, and its fallback pays 12 ns an element for the mask. Queries are taken in
chunks that see only the keys up to their end, which spares nearly half of long sequences' work;
gradients are written in place, without the concatenations of automatic differentiation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.buckets import Bucket
from hasten.ops.dropout import keep_mask
from hasten.ops.dtypes import wide

#: queries taken together: fewer waste less on masked keys, more make larger products
CHUNK = 64


def causal_attention(
    packed: Tensor, buckets: Sequence[Bucket], heads: int, drop: float, training: bool
) -> Tensor:
    """Attention output [T, D] of flat tokens.

    packed: [T, 3·D], queries, keys and values side by side, each head's columns together; buckets:
    must cover all T tokens; drop: probability with which attention weights are dropped.
    """
    if packed.device.type == "cpu" and training and drop > 0.0:
        out: Tensor = _BucketedAttention.apply(packed, buckets, heads, drop)  # type: ignore[no-untyped-call]
        return out
    width = packed.shape[1] // 3
    parts = []
    # split, not slices: its backward is one concatenation
    sizes = [bucket.rows * bucket.length for bucket in buckets]
    for bucket, part in zip(buckets, torch.split(packed, sizes), strict=True):
        shape = (bucket.rows, bucket.length, 3, heads, width // heads)
        query, key, value = part.view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=drop if training else 0.0
        )
        parts.append(attended.transpose(1, 2).reshape(-1, width))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def causal_attention_reference(packed: Tensor, buckets: Sequence[Bucket], heads: int) -> Tensor:
    """The equation, written out (no dropout)."""
    width = packed.shape[1] // 3
    parts = []
    for bucket in buckets:
        shape = (bucket.rows, bucket.length, 3, heads, width // heads)
        query, key, value = packed[bucket.start : bucket.stop].view(shape).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // heads)
        future = torch.ones(bucket.length, bucket.length, dtype=torch.bool).triu(1)
        weights = torch.softmax(scores.masked_fill(future.to(packed.device), -math.inf), dim=-1)
        parts.append((weights @ value).transpose(1, 2).reshape(-1, width))
    return torch.cat(parts)


def _views(packed: Tensor, bucket: Bucket, heads: int) -> tuple[Tensor, ...]:
    """[rows·heads, length, d] queries, keys and values of a bucket (views if there is one head)."""
    width = packed.shape[1] // 3
    shape = (bucket.rows, bucket.length, 3, heads, width // heads)
    parts = packed[bucket.start : bucket.stop].view(shape).permute(2, 0, 3, 1, 4)
    return tuple(part.reshape(-1, bucket.length, width // heads) for part in parts)


def _chunks(length: int) -> list[tuple[int, int]]:
    """Ranges of queries, the last first: it sees all keys and so begins their gradients."""
    return [(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK)][::-1]


def _future_mask(start: int, stop: int, like: Tensor) -> Tensor:
    """[1, stop-start, stop] of 0 where a query may look and -inf above."""
    mask = torch.full((1, stop - start, stop), -math.inf, dtype=like.dtype)
    return mask.triu_(start + 1)


class _BucketedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, buckets: Sequence[Bucket], heads: int, drop: float
    ) -> Tensor:
        width = packed.shape[1] // 3
        scale = 1.0 / math.sqrt(width // heads)
        out = packed.new_empty(len(packed), width)
        kept: list[Tensor] = []
        with torch.autocast("cpu", enabled=False):
            for bucket in buckets:
                query, key, value = _views(packed, bucket, heads)
                query = query * scale
                per_head = out[bucket.start : bucket.stop].view(
                    bucket.rows, -1, heads, query.shape[2]
                )
                per_head = per_head.transpose(1, 2)
                # with one head the products are written where they belong
                attended = per_head[:, 0] if heads == 1 else torch.empty_like(query)
                for start, stop in _chunks(bucket.length):
                    scores = torch.baddbmm(
                        _future_mask(start, stop, query),
                        query[:, start:stop],
                        key[:, :stop].transpose(1, 2),
                    )
                    weights = torch.softmax(scores, dim=-1, dtype=wide(scores))
                    mask = keep_mask(weights.shape, drop).to(weights.dtype)
                    dropped = (weights * mask).to(value.dtype)
                    torch.bmm(dropped, value[:, :stop], out=attended[:, start:stop])
                    kept += [weights, mask]
                if heads > 1:
                    per_head.copy_(attended.view(per_head.shape))
        ctx.buckets, ctx.heads, ctx.scale = buckets, heads, scale
        ctx.save_for_backward(packed, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        packed, *kept = ctx.saved_tensors
        heads, scale = ctx.heads, ctx.scale
        grad = torch.empty_like(packed)
        pairs = iter(zip(kept[::2], kept[1::2], strict=True))
        for bucket in ctx.buckets:
            query, key, value = _views(packed, bucket, heads)
            query = query * scale
            upper = grad_out[bucket.start : bucket.stop].view(
                bucket.rows, -1, heads, query.shape[2]
            )
            upper = upper.transpose(1, 2).reshape(query.shape)
            grad_query, grad_key, grad_value = (torch.empty_like(query) for _ in range(3))
            for number, (start, stop) in enumerate(_chunks(bucket.length)):
                weights, mask = next(pairs)
                here = upper[:, start:stop]
                grad_weights = torch.bmm(here, value[:, :stop].transpose(1, 2)).to(mask.dtype)
                grad_scores = torch._softmax_backward_data(
                    grad_weights.mul_(mask), weights, -1, weights.dtype
                ).to(query.dtype)
                dropped = (weights * mask).to(value.dtype)
                torch.bmm(grad_scores, key[:, :stop], out=grad_query[:, start:stop])
                # the last chunk comes first and sees all keys: it begins, the others add
                begin = 0 if number == 0 else 1
                for total, left, right in (
                    (grad_value, dropped, here),
                    (grad_key, grad_scores, query[:, start:stop]),
                ):
                    total[:, :stop].baddbmm_(left.transpose(1, 2), right, beta=begin)
            target = grad[bucket.start : bucket.stop].view(
                bucket.rows, -1, 3, heads, query.shape[2]
            )
            for index, part in enumerate((grad_query.mul_(scale), grad_key, grad_value)):
                target[:, :, index] = part.view(bucket.rows, heads, bucket.length, -1).transpose(
                    1, 2
                )
        return grad, None, None, None

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
from dataclasses import dataclass
from functools import lru_cache
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


@lru_cache(maxsize=1024)
def _future_mask(start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """[1, stop-start, stop] of 0 where a query may look and -inf above."""
    return torch.full((1, stop - start, stop), -math.inf, dtype=dtype).triu_(start + 1)


@dataclass(frozen=True)
class _Piece:
    """A chunk of queries of one head in one bucket, with the keys that it sees.

    tokens, columns: where the bucket and the head lie in [T, D]; start, stop: the queries.
    """

    bucket: Bucket
    tokens: slice
    columns: slice
    start: int
    stop: int

    @property
    def cells(self) -> tuple[int, int, int]:
        """The shape of its attention weights."""
        return self.bucket.rows, self.stop - self.start, self.stop

    def of(self, tensor: Tensor) -> Tensor:
        """[rows, length, d] view of a [T, D] tensor: this bucket's rows, this head's columns."""
        part = tensor[self.tokens, self.columns]
        return part.view(self.bucket.rows, self.bucket.length, part.shape[1])


def _pieces(buckets: Sequence[Bucket], heads: int, width: int) -> list[_Piece]:
    """All pieces; within a bucket and head the last chunk first: it sees all keys."""
    size = width // heads
    return [
        _Piece(
            bucket,
            slice(bucket.start, bucket.stop),
            slice(head * size, (head + 1) * size),
            start,
            min(start + CHUNK, bucket.length),
        )
        for bucket in buckets
        for head in range(heads)
        for start in reversed(range(0, bucket.length, CHUNK))
    ]


class _BucketedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, buckets: Sequence[Bucket], heads: int, drop: float
    ) -> Tensor:
        width = packed.shape[1] // 3
        query, key, value = torch.split(packed, width, dim=1)
        query = query / math.sqrt(width // heads)
        out = packed.new_empty(len(packed), width)
        pieces = _pieces(buckets, heads, width)
        sizes = [math.prod(piece.cells) for piece in pieces]
        masks = keep_mask(torch.Size([sum(sizes)]), drop).to(wide(packed))
        kept = []
        with torch.autocast("cpu", enabled=False):
            for piece, mask in zip(pieces, torch.split(masks, sizes), strict=True):
                scores = torch.baddbmm(
                    _future_mask(piece.start, piece.stop, packed.dtype),
                    piece.of(query)[:, piece.start : piece.stop],
                    piece.of(key)[:, : piece.stop].transpose(1, 2),
                )
                weights = torch.softmax(scores, dim=-1, dtype=masks.dtype)
                dropped = (weights * mask.view(piece.cells)).to(value.dtype)
                attended = torch.bmm(dropped, piece.of(value)[:, : piece.stop])
                piece.of(out)[:, piece.start : piece.stop] = attended
                kept.append(weights)
        ctx.pieces, ctx.sizes = pieces, sizes
        ctx.save_for_backward(packed, query, masks, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        packed, query, masks, *kept = ctx.saved_tensors
        width = packed.shape[1] // 3
        _, key, value = torch.split(packed, width, dim=1)
        grad = torch.empty_like(packed)
        grad_query, grad_key, grad_value = torch.split(grad, width, dim=1)
        parts = zip(ctx.pieces, torch.split(masks, ctx.sizes), kept, strict=True)
        for piece, flat, weights in parts:
            start, stop = piece.start, piece.stop
            mask = flat.view(piece.cells)
            upper = piece.of(grad_out)[:, start:stop]
            grad_weights = torch.bmm(upper, piece.of(value)[:, :stop].transpose(1, 2))
            grad_scores = torch._softmax_backward_data(
                grad_weights.to(mask.dtype).mul_(mask), weights, -1, weights.dtype
            ).to(query.dtype)
            dropped = (weights * mask).to(value.dtype)
            # products into fresh tensors: into strided ones torch multiplies row by row
            piece.of(grad_query)[:, start:stop] = torch.bmm(grad_scores, piece.of(key)[:, :stop])
            new_value = torch.bmm(dropped.transpose(1, 2), upper)
            new_key = torch.bmm(grad_scores.transpose(1, 2), piece.of(query)[:, start:stop])
            # the chunk that sees all keys comes first and begins their gradients, the others add
            if stop == piece.bucket.length:
                piece.of(grad_value).copy_(new_value)
                piece.of(grad_key).copy_(new_key)
            else:
                piece.of(grad_value)[:, :stop] += new_value
                piece.of(grad_key)[:, :stop] += new_key
        grad_query.div_(math.sqrt(ctx.pieces[0].columns.stop - ctx.pieces[0].columns.start))
        return grad, None, None, None

"""Causal self-attention with embeddings of the time between two interactions, over buckets.

Li et al. 2020 (TiSASRec), equations 4-7; the caller adds positions to keys and values:

    logits_ij = q_i · (k_j + K[t_ij]) / √d,   out_i = Σ_j softmax(logits_i)_j (v_j + V[t_ij])

with t_ij = min(|t_i - t_j|, span). Gathered per pair, K[t] and V[t] take [B, L, L, D] each. But
t_ij has few values: the products of a query with all span + 1 rows of K are computed once and
gathered by t_ij, and the weights of keys at the same interval are summed into *bins* before they
are multiplied by V. The backward pass swaps the two. Nothing is larger than [B, L, L] or
[B, L, span + 1].

One function computes all buckets, forward and backward, as in :mod:`.causal_attention`:
queries in chunks that see only the keys up to their end, gradients written in place. The backward
pass keeps weights and bins in the precision of the queries, and one bit of the mask per weight.
On a CPU all products are in float32, for the reason given there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.attention.head_chunks import HeadChunk, chunks, head_chunks
from hasten.ops.buckets import Bucket
from hasten.ops.dense.dropout import keep_bytes, masks_of
from hasten.ops.dense.product import outer_by_blocks, product_by_blocks
from hasten.ops.dtypes import accumulation_dtype, upcast
from hasten.ops.triton.choice import LARGEST_HEAD_BYTES, uses_triton

#: bins that are summed at once, where they are then rounded to a lower precision
_SUMMED = 1 << 20


def _untraced(function: Callable[..., Any], *arguments: Any) -> Any:
    """Every bucket has another shape: traced, each would be compiled anew."""
    if torch.compiler.is_compiling():  # a late import: it takes a second
        return torch.compiler.disable(function)(*arguments)  # type: ignore[no-untyped-call]
    return function(*arguments)


@dataclass(frozen=True)
class Intervals:
    """The intervals between the tokens of each sequence, for all blocks of a model."""

    times: Tensor
    buckets: Sequence[Bucket]
    span: int

    @cached_property
    def pairs(self) -> Sequence[Sequence[Tensor]]:
        """For each bucket and each chunk of its queries, [rows, chunk, keys seen] in 0..span.

        int16 if span fits, else int32. Triton's kernels compute the intervals from the times.
        """
        pairs, kind = [], torch.int16 if self.span < 2**15 else torch.int32
        for bucket in self.buckets:
            time = self.times[bucket.start : bucket.stop].view(bucket.rows, bucket.length)
            pairs.append(
                [
                    (time[:, part, None] - time[:, None, : part.stop])
                    .abs_()
                    .clamp_(max=self.span)
                    .to(kind)
                    for part in chunks(bucket.length)
                ]
            )
        return pairs


def find_intervals(times: Tensor, buckets: Sequence[Bucket], span: int) -> Intervals:
    """The intervals of flat tokens.

    times: int64 [T] in the unit of the tables' rows; buckets: cover all T tokens; span: the largest
    interval; longer ones count as span.
    """
    return Intervals(times, buckets, span)


def interval_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    intervals: Intervals,
    heads: int,
    drop: float,
    training: bool,
) -> Tensor:
    """Attention output [T, D] of flat tokens.

    query, key, value: [T, D], the columns of each head adjacent; key_table, value_table:
    [span + 1, D] embeddings of the intervals; drop: dropout probability of the attention weights.
    """
    assert len(key_table) == len(value_table) == intervals.span + 1
    chance = drop if training else 0.0
    head = query.shape[1] // heads * query.element_size()
    free = not torch.are_deterministic_algorithms_enabled() and head <= LARGEST_HEAD_BYTES
    if free and uses_triton("interval attention", query, query.shape[1] // heads, query.dtype):
        from hasten.ops.triton import interval_attention as kernels  # noqa: PLC0415

        found = intervals.times, intervals.buckets, heads, chance
        return kernels.interval_attention(query, key, value, key_table, value_table, *found)
    tensors = query, key, value, key_table, value_table
    out: Tensor = _untraced(_IntervalAttention.apply, *tensors, intervals, heads, chance)
    return out


def interval_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    times: Tensor,
    buckets: Sequence[Bucket],
    heads: int,
) -> Tensor:
    """The equations written out, with [rows, L, L, D] tensors (no dropout)."""
    width, span = query.shape[1], len(key_table) - 1
    size = width // heads
    parts = []
    for bucket in buckets:
        rows, length, tokens = bucket.rows, bucket.length, slice(bucket.start, bucket.stop)
        shape = (rows, length, heads, size)
        q, k, v = (tensor[tokens].view(shape).transpose(1, 2) for tensor in (query, key, value))
        time = times[tokens].view(rows, length)
        apart = (time[:, :, None] - time[:, None, :]).abs().clamp(max=span)
        pairs = (rows, length, length, heads, size)
        keys = k[:, :, None] + key_table[apart].view(pairs).permute(0, 3, 1, 2, 4)
        values = v[:, :, None] + value_table[apart].view(pairs).permute(0, 3, 1, 2, 4)
        scores = (q[:, :, :, None] * keys).sum(-1) / math.sqrt(size)
        future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        weights = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1)
        out = (weights[..., None] * values).sum(-2)
        parts.append(out.transpose(1, 2).reshape(-1, width))
    return torch.cat(parts)


def _padded(table: Tensor) -> Tensor:
    """With zero rows up to a multiple of 8: products with 257 columns are up to 4 times slower."""
    return F.pad(table, (0, 0, 0, -len(table) % 8))


def _pieces(intervals: Intervals, heads: int, width: int) -> list[tuple[HeadChunk, Tensor]]:
    """Every chunk of queries, with the intervals to the keys that it sees."""
    pairs = [each for of_bucket in intervals.pairs for _ in range(heads) for each in of_bucket]
    return list(zip(head_chunks(intervals.buckets, heads, width), pairs, strict=True))


def _masks(
    bits: Tensor | None, pieces: Sequence[tuple[HeadChunk, Tensor]], drop: float, like: Tensor
) -> Iterable[Tensor | None]:
    """The dropout mask of every piece, in order."""
    if bits is None:
        return [None] * len(pieces)
    return masks_of(bits, [pairs.shape for _, pairs in pieces], drop, accumulation_dtype(like))


class _IntervalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_table: Tensor,
        value_table: Tensor,
        intervals: Intervals,
        heads: int,
        drop: float,
    ) -> Tensor:
        width = query.shape[1]
        dtype = accumulation_dtype(query) if query.device.type == "cpu" else query.dtype
        ctx.scale = 1 / math.sqrt(width // heads)
        query = query * ctx.scale
        tables = _padded(key_table.to(dtype)), _padded(value_table.to(dtype))
        out = torch.empty_like(query)
        pieces = _pieces(intervals, heads, width)
        cells = sum(pairs.numel() for _, pairs in pieces)
        bits = keep_bytes(cells, drop, query.device) if drop else None
        kept: list[Tensor] = []
        with torch.autocast(query.device.type, enabled=False):
            for (piece, short), mask in zip(pieces, _masks(bits, pieces, drop, query), strict=True):
                pairs = short.long()
                of_keys, of_values = (table[:, piece.columns].contiguous() for table in tables)
                asked, keys = piece.of_queries(query).to(dtype), piece.of_keys(key).to(dtype)
                scores = _towards(asked, keys, of_keys, pairs)
                _hide_future(scores[:, :, piece.queries.start :])
                weights = torch.softmax(scores, dim=-1)
                dropped = weights if mask is None else mask.mul_(weights)
                bins = _bins(dropped, len(of_keys), pairs, dtype)
                attended = _times(bins, of_values)
                attended.baddbmm_(dropped.to(dtype), piece.of_keys(value).to(dtype))
                piece.of_queries(out).copy_(attended)
                if any(ctx.needs_input_grad):
                    kept += [weights.to(query.dtype), bins.to(query.dtype)]
        ctx.pieces, ctx.drop = pieces, drop
        ctx.save_for_backward(query, key, value, *tables, bits, *kept)
        ctx.dtypes, ctx.rows = (key_table.dtype, value_table.dtype), len(key_table)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, key_table, value_table, bits, *kept = ctx.saved_tensors
        dtype, total = key_table.dtype, accumulation_dtype(query)
        grad_query, grad_key, grad_value = (torch.empty_like(query) for _ in range(3))
        grad_key_table = torch.zeros_like(key_table, dtype=total)
        grad_value_table = torch.zeros_like(value_table, dtype=total)
        masks = _masks(bits, ctx.pieces, ctx.drop, query)
        saved = zip(ctx.pieces, masks, kept[::2], kept[1::2], strict=True)
        for (piece, short), mask, low_weights, bins in saved:
            pairs, weights = short.long(), low_weights.to(total)
            dropped = weights if mask is None else mask.mul_(weights)
            of_keys, of_values = (
                table[:, piece.columns].contiguous() for table in (key_table, value_table)
            )
            asked, upper = (piece.of_queries(each).to(dtype) for each in (query, grad_out))
            # softmax and mask at once: dropped · g - weights · Σ dropped · g
            values = piece.of_keys(value).to(dtype)
            slope = _towards(upper, values, of_values, pairs).mul_(dropped)
            slope.addcmul_(weights, slope.sum(-1, keepdim=True), value=-1)
            slopes = _bins(slope, len(of_keys), pairs, dtype)
            slope, low = slope.to(dtype), dropped.to(dtype)
            new_query = _times(slopes, of_keys)
            new_query.baddbmm_(slope, piece.of_keys(key).to(dtype))
            piece.of_queries(grad_query).copy_(new_query)
            grad_key_table[:, piece.columns].add_(_outer(slopes, asked))
            grad_value_table[:, piece.columns].add_(_outer(bins.to(dtype), upper))
            for grad, left, right in ((grad_key, slope, asked), (grad_value, low, upper)):
                new, into = torch.bmm(left.transpose(1, 2), right), piece.of_keys(grad)
                # the first chunk sees all keys: it overwrites their gradients, the others add
                if piece.sees_all:
                    into.copy_(new)
                else:
                    into.add_(new)
        grad_query.mul_(ctx.scale)
        of_tables = (
            grad[: ctx.rows].to(kind)
            for grad, kind in zip((grad_key_table, grad_value_table), ctx.dtypes, strict=True)
        )
        return grad_query, grad_key, grad_value, *of_tables, None, None, None


def _towards(x: Tensor, keys: Tensor, table: Tensor, pairs: Tensor) -> Tensor:
    """x_i · (keys_j + table[pairs_ij]) in float32 or wider: [rows, chunk, keys seen]."""
    found = upcast(torch.gather(_times(x, table.T), 2, pairs))
    if found.dtype == x.dtype:
        return found.baddbmm_(x, keys.transpose(1, 2))
    return found.add_(torch.bmm(x, keys.transpose(1, 2)))


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """[rows, chunk, K] of [rows, chunk, D] and [D, K]."""
    return product_by_blocks(x.flatten(0, 1), matrix).view(*x.shape[:2], -1)


def _bins(weights: Tensor, count: int, pairs: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum the weights of the keys at the same interval: [rows, chunk, count] in this dtype."""
    if dtype == weights.dtype:
        return weights.new_zeros(*weights.shape[:2], count).scatter_add_(2, pairs, weights)
    bins = weights.new_empty(*weights.shape[:2], count, dtype=dtype)
    step = max(1, _SUMMED // (weights.shape[1] * count))
    for parts in zip(*(torch.split(each, step) for each in (bins, weights, pairs)), strict=True):
        into, part, indices = parts
        into.copy_(_bins(part, count, indices, part.dtype))
    return bins


def _outer(bins: Tensor, x: Tensor) -> Tensor:
    """Σ bins_i ⊗ x_i over all queries: [count, d]."""
    return outer_by_blocks(x.flatten(0, 1), bins.flatten(0, 1)).T


def _hide_future(scores: Tensor) -> None:
    """Set future keys to -inf, in the square [rows, c, c] on the diagonal."""
    size = scores.shape[-1]
    future = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu_(1)
    scores.masked_fill_(future, -math.inf)

"""Interval attention in Triton: attention weights are never written to memory.

With t the interval of a query and a key, a = q Kᵀ and c = g Vᵀ for the tables K, V of intervals
and the output's gradient g, all [span + 1] wide for each query:

    scores = q · k + a[t],   out = Σ p v + Σ_t bins[t] V[t],   bins[t] = Σ p [interval is t]
    ∂score = p (g · v + c[t] - g · out)

Products with the tables are matrix products of PyTorch; the kernels compute intervals from times,
gather a[t] and c[t], and sum weights and gradients of scores into bins. The backward pass computes
scores again. Sums into a bin are atomic, in any order, so results differ in the last bits from run
to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.ops.buckets import Bucket
from hasten.ops.triton.tiles import padded_width

#: queries and keys of a tile. With heads of 256 bytes, its four tiles of rows take 32 KiB of shared
#: memory; scores, gradients and places in the bins of 64 x 64 pairs would not fit into registers.
BLOCK = 32
WARPS = 8


@triton.jit
def _tile(
    source, base, i, length, head, WIDTH: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr
):
    """Rows i of a sequence and the columns of a head, padded with zeros."""
    columns = tl.arange(0, PADDED)
    rows = (base + i).to(tl.int64)[:, None] * WIDTH + head * SIZE
    mask = (i < length)[:, None] & (columns < SIZE)[None, :]
    return tl.load(source + rows + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _store(
    target,
    values,
    base,
    i,
    length,
    head,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
):
    columns = tl.arange(0, PADDED)
    rows = (base + i).to(tl.int64)[:, None] * WIDTH + head * SIZE
    mask = (i < length)[:, None] & (columns < SIZE)[None, :]
    tl.store(target + rows + columns[None, :], values, mask=mask)


@triton.jit
def _bins(times, base, i, j, length, head, tokens, span):
    """Where in [heads, tokens, span + 1] the interval of each pair is; which pairs are valid."""
    apart = tl.load(times + base + i, mask=i < length, other=0)[:, None]
    apart = tl.abs(apart - tl.load(times + base + j, mask=j < length, other=0)[None, :])
    rows = (head.to(tl.int64) * tokens + base + i) * (span + 1)
    valid = (j[None, :] <= i[:, None]) & (i < length)[:, None]
    return rows[:, None] + tl.minimum(apart, span), valid


@triton.jit
def _kept(seed, base, i, j, head, tokens, longest, drop):
    """The dropout mask of a tile: 0 or 1 / (1 - drop)."""
    cells = (head.to(tl.int64) * tokens + base + i)[:, None] * longest + j[None, :]
    return tl.where(tl.rand(tl.load(seed), cells) >= drop, 1.0 / (1.0 - drop), 0.0)


@triton.jit
def _forward(
    query, key, value, table_scores, times, seed, out, lse, bins,
    start, length, heads, tokens, span, longest, drop,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Two passes over the keys of a tile of queries: log-sum-exp, then weights."""
    head = tl.program_id(0) % heads
    base = start + tl.program_id(0) // heads * length
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    asked = _tile(query, base, i, length, head, WIDTH, SIZE, PADDED)
    largest = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    stop = tl.minimum((tl.program_id(1) + 1) * BLOCK, length)
    for first in range(0, stop, BLOCK):
        j = first + tl.arange(0, BLOCK)
        place, valid = _bins(times, base, i, j, length, head, tokens, span)
        scores = tl.dot(asked, tl.trans(_tile(key, base, j, length, head, WIDTH, SIZE, PADDED)))
        scores += tl.load(table_scores + place, mask=valid, other=0.0)
        scores = tl.where(j[None, :] <= i[:, None], scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(scores - new[:, None]), 1)
        largest = new
    log_sum = largest + tl.log(total)
    tl.store(lse + head * tokens + base + i, log_sum, mask=i < length)
    attended = tl.zeros([BLOCK, PADDED], dtype=tl.float32)
    for first in range(0, stop, BLOCK):
        j = first + tl.arange(0, BLOCK)
        place, valid = _bins(times, base, i, j, length, head, tokens, span)
        scores = tl.dot(asked, tl.trans(_tile(key, base, j, length, head, WIDTH, SIZE, PADDED)))
        scores += tl.load(table_scores + place, mask=valid, other=0.0)
        weights = tl.exp(tl.where(valid, scores - log_sum[:, None], -float("inf")))
        if seed is not None:
            weights *= _kept(seed, base, i, j, head, tokens, longest, drop)
        tl.atomic_add(bins + place, weights, mask=valid, sem="relaxed")
        theirs = _tile(value, base, j, length, head, WIDTH, SIZE, PADDED)
        attended = tl.dot(weights.to(theirs.dtype), theirs, attended)
    _store(out, attended, base, i, length, head, WIDTH, SIZE, PADDED)


@triton.jit
def _backward(
    query, key, value, grad, table_scores, table_grads, times, seed, lse, inner,
    grad_query, slopes, grad_key, grad_value,
    start, length, heads, tokens, span, longest, drop,
    OF_KEYS: tl.constexpr,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program owns a tile of keys, and sums over later queries; or of queries, over earlier keys.

    inner: [heads, tokens] g · out. slopes: bins of the gradients of scores.
    """
    head = tl.program_id(0) % heads
    base = start + tl.program_id(0) // heads * length
    own = tl.program_id(1) * BLOCK
    if OF_KEYS:
        begin, stop = own, length
    else:
        begin, stop = 0, tl.minimum(own + BLOCK, length)
    total = tl.zeros([BLOCK, PADDED], dtype=tl.float32)
    of_value = tl.zeros([BLOCK, PADDED], dtype=tl.float32)
    for first in range(begin, stop, BLOCK):
        if OF_KEYS:
            i, j = first + tl.arange(0, BLOCK), own + tl.arange(0, BLOCK)
        else:
            i, j = own + tl.arange(0, BLOCK), first + tl.arange(0, BLOCK)
        asked = _tile(query, base, i, length, head, WIDTH, SIZE, PADDED)
        upper = _tile(grad, base, i, length, head, WIDTH, SIZE, PADDED)
        keys = _tile(key, base, j, length, head, WIDTH, SIZE, PADDED)
        values = _tile(value, base, j, length, head, WIDTH, SIZE, PADDED)
        place, valid = _bins(times, base, i, j, length, head, tokens, span)
        of_row = head * tokens + base + i
        scores = tl.dot(asked, tl.trans(keys))
        scores += tl.load(table_scores + place, mask=valid, other=0.0)
        scores -= tl.load(lse + of_row, mask=i < length, other=0.0)[:, None]
        weights = tl.exp(tl.where(valid, scores, -float("inf")))
        slope = tl.dot(upper, tl.trans(values))
        slope += tl.load(table_grads + place, mask=valid, other=0.0)
        dropped = weights
        if seed is not None:
            kept = _kept(seed, base, i, j, head, tokens, longest, drop)
            slope, dropped = slope * kept, weights * kept
        slope = weights * (slope - tl.load(inner + of_row, mask=i < length, other=0.0)[:, None])
        if OF_KEYS:
            total = tl.dot(tl.trans(slope.to(asked.dtype)), asked, total)
            of_value = tl.dot(tl.trans(dropped.to(upper.dtype)), upper, of_value)
        else:
            tl.atomic_add(slopes + place, slope, mask=valid, sem="relaxed")
            total = tl.dot(slope.to(keys.dtype), keys, total)
    mine = own + tl.arange(0, BLOCK)
    if OF_KEYS:
        _store(grad_key, total, base, mine, length, head, WIDTH, SIZE, PADDED)
        _store(grad_value, of_value, base, mine, length, head, WIDTH, SIZE, PADDED)
    else:
        _store(grad_query, total, base, mine, length, head, WIDTH, SIZE, PADDED)


def interval_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    times: Tensor,
    buckets: Sequence[Bucket],
    heads: int,
    drop: float,
    block: int = BLOCK,
) -> Tensor:
    """Attention output [T, D], as of :mod:`hasten.ops.attention.interval_attention`.

    times: int64 [T]. drop: dropout probability; 0 in evaluation. block: queries and keys of a tile.
    """
    args = query, key, value, key_table, value_table, times, buckets, heads, drop, block
    result: Tensor = _IntervalAttention.apply(*args)
    return result


class _IntervalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_table: Tensor,
        value_table: Tensor,
        times: Tensor,
        buckets: Sequence[Bucket],
        heads: int,
        drop: float,
        block: int,
    ) -> Tensor:
        tokens, width = query.shape
        launch = _Launch(buckets, tokens, heads, width, len(key_table) - 1, drop, block)
        scaled = (query / math.sqrt(launch.size)).contiguous()
        keys, values, times = key.contiguous(), value.contiguous(), times.contiguous()
        seed = torch.randint(2**31, (1,), device=query.device) if drop else None
        with torch.autocast(query.device.type, enabled=False):
            table_scores = launch.by_head(scaled) @ launch.by_head(key_table).transpose(1, 2)
            out = torch.empty_like(scaled, dtype=torch.float32)
            lse, bins = out.new_empty(heads, tokens), torch.zeros_like(table_scores)
            inputs = scaled, keys, values, table_scores, times, seed, out, lse, bins
            launch(_forward, *inputs)
            out += launch.flat(bins @ launch.by_head(value_table))
        low = out.to(query.dtype)
        ctx.launch = launch
        ctx.save_for_backward(
            scaled, keys, values, key_table, value_table, table_scores, times, seed, lse, bins, low
        )
        return low

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, key_table, value_table, table_scores, times, seed, lse, bins, out = (
            ctx.saved_tensors
        )
        launch, grad_out = ctx.launch, grad_out.contiguous()
        grads = [torch.empty_like(query, dtype=torch.float32) for _ in range(3)]
        with torch.autocast(query.device.type, enabled=False):
            upper = launch.by_head(grad_out)
            inner = (upper * launch.by_head(out)).sum(-1)
            table_grads = upper @ launch.by_head(value_table).transpose(1, 2)
            slopes = torch.zeros_like(bins)
            inputs = query, key, value, grad_out, table_scores, table_grads, times, seed, lse, inner
            outputs = grads[0], slopes, grads[1], grads[2]
            for of_keys in (False, True):
                launch(_backward, *inputs, *outputs, OF_KEYS=of_keys)
            grads[0] += launch.flat(slopes @ launch.by_head(key_table))
            grads[0] /= math.sqrt(launch.size)
            of_key_table = launch.flat(slopes.transpose(1, 2) @ launch.by_head(query))
            of_value_table = launch.flat(bins.transpose(1, 2) @ upper)
        of_tables = of_key_table.to(key_table.dtype), of_value_table.to(value_table.dtype)
        return *(grad.to(query.dtype) for grad in grads), *of_tables, *[None] * 5


class _Launch:
    """Starts a kernel for each bucket, with the arguments that all of them have."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        tokens: int,
        heads: int,
        width: int,
        span: int,
        drop: float,
        block: int,
    ) -> None:
        self.buckets, self.heads, self.size = buckets, heads, width // heads
        padded = padded_width(self.size)
        self.block = block
        self.numbers = (
            heads,
            tokens,
            span,
            max((bucket.length for bucket in buckets), default=0),
            drop,
        )
        self.options = {"WIDTH": width, "SIZE": self.size, "PADDED": padded, "BLOCK": self.block}
        self.options |= {"num_warps": WARPS, "num_stages": 2}

    def __call__(self, kernel: Any, *tensors: Tensor | None, **constants: bool) -> None:
        for bucket in self.buckets:
            grid = bucket.rows * self.heads, -(-bucket.length // self.block)
            where = bucket.start, bucket.length
            kernel[grid](*tensors, *where, *self.numbers, **constants, **self.options)

    def by_head(self, rows: Tensor) -> Tensor:
        """[heads, rows, size] in float32."""
        return rows.view(len(rows), self.heads, self.size).transpose(0, 1).float()

    def flat(self, rows: Tensor) -> Tensor:
        """[rows, heads * size] of what :meth:`by_head` returns."""
        return rows.transpose(0, 1).reshape(rows.shape[1], -1)

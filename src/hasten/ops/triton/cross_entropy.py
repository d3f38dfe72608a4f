"""Full-catalogue cross-entropy in Triton: the logits are never written to memory.

The forward kernel keeps a running maximum and sum of exponentials for each query (online softmax,
Milakov & Gimelshein 2018). The backward pass computes the logits again, tile by tile
(:mod:`.catalogue_gradients`): five matrix products instead of three, in exchange for T x N logits
that are neither written nor read. Sums and softmax are float32, and so are the logits; only
operands of the matrix products have a lower precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.ops.triton.catalogue_gradients import Residuals, gradient
from hasten.ops.triton.tiles import Targets, Tiling, is_target, load_rows


@triton.jit
def _log_sum_exp(
    x, table, bias, target_item, target_query, starts, lse, picked,
    queries, items, per_split,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The log-sum-exp of each query's scores and the sum of its targets', over some tiles."""
    tile, split = tl.program_id(0), tl.program_id(1)
    i = tile * BLOCK + tl.arange(0, BLOCK)
    mine = load_rows(x, i, queries, WIDTH, PADDED)
    largest = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    of_targets = tl.zeros([BLOCK], dtype=tl.float32)
    across = tl.cdiv(items, BLOCK)
    for each in range(split * per_split, tl.minimum((split + 1) * per_split, across)):
        j = each * BLOCK + tl.arange(0, BLOCK)
        theirs = load_rows(table, j, items, WIDTH, PADDED)
        scores = tl.dot(mine, tl.trans(theirs), input_precision=PRECISION)
        if bias is not None:
            scores += tl.load(bias + j, mask=j < items, other=0.0).to(tl.float32)[None, :]
        true = is_target(
            i[:, None], j[None, :], tile * across + each, queries, target_item, target_query, starts
        )
        of_targets += tl.sum(tl.where(true > 0, scores, 0.0), 1)
        scores = tl.where((j < items)[None, :], scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(scores - new[:, None]), 1)
        largest = new
    inside = i < queries
    tl.store(lse + split * queries + i, largest + tl.log(total), mask=inside)
    tl.store(picked + split * queries + i, of_targets, mask=inside)


def cross_entropy(
    x: Tensor,
    blocks: Sequence[Tensor],
    target: Tensor,
    bias: Tensor | None,
    query: Tensor | None,
    dtype: torch.dtype,
    residual_scale: float,
    block: int | None = None,
) -> Tensor:
    """Sum of cross-entropies, as of :func:`~hasten.ops.losses.catalogue_loss`.

    dtype: of the matrix products. residual_scale: of residuals as operands of this type, where a
    query has one target. block: rows of a tile, None: chosen by width and type.
    """
    args = x, bias, target, query, dtype, residual_scale, block
    result: Tensor = _CrossEntropy.apply(*args, *blocks)
    return result


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        target: Tensor,
        query: Tensor | None,
        dtype: torch.dtype,
        residual_scale: float,
        block: int | None,
        *blocks: Tensor,
    ) -> Tensor:
        tiling = Tiling.of(x, dtype, block)
        low = x.to(dtype).contiguous()
        tables = [table.to(dtype).contiguous() for table in blocks]
        firsts = [0, *accumulate(map(len, blocks))]
        lse_parts, picked_parts, targets = [], [], []
        splits, each = 1, 1
        for table, first in zip(tables, firsts, strict=False):
            here = Targets.build(target, query, len(x), first, len(table), tiling)
            own = tiling.tiles(len(x))
            splits, each = tiling.split(own, tiling.tiles(len(table)))
            lse, picked = x.new_empty(2, splits, len(x), dtype=torch.float32).unbind()
            _log_sum_exp[(own, splits)](
                low, table, None if bias is None else bias[first:],
                here.item, here.query, here.starts, lse, picked,
                len(x), len(table), each, **tiling.options,
            )  # fmt: skip
            lse_parts.append(lse)
            picked_parts.append(picked)
            targets.append(here)
        lse = torch.logsumexp(torch.cat(lse_parts), 0)
        scale = lse.new_full((1,), residual_scale)
        counts = None
        if query is not None:
            ones = lse.new_ones(len(query))
            counts = torch.zeros_like(lse).index_add_(0, query, ones)  # bincount would wait
            if residual_scale != 1:
                scale /= counts.max().clamp(min=1)
        ctx.targets, ctx.tiling, ctx.dtypes = targets, tiling, (x.dtype, [b.dtype for b in blocks])
        ctx.save_for_backward(low, bias, lse, counts, scale, *tables)
        weighted = lse if counts is None else lse * counts
        return weighted.sum() - torch.cat(picked_parts).sum()

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        low, bias, lse, counts, scale, *tables = ctx.saved_tensors
        residuals = Residuals(lse, counts, 0.0, 1.0, scale)
        factor = grad_loss / scale
        x_dtype, table_dtypes = ctx.dtypes
        grad_x, grad_bias, grad_tables = torch.zeros_like(low, dtype=torch.float32), [], []
        firsts = [0, *accumulate(map(len, tables))]
        for table, first, targets, dtype in zip(
            tables, firsts, ctx.targets, table_dtypes, strict=False
        ):
            part = None if bias is None else bias[first : first + len(table)]
            args = low, table, part, targets, residuals, ctx.tiling
            grad_x += gradient(*args, of_table=False)[0]
            of_table, of_part = gradient(*args, of_table=True)
            grad_tables.append(of_table.mul_(factor).to(dtype))
            if of_part is not None:
                grad_bias.append(of_part)
        of_bias = None
        if bias is not None:
            of_bias = (torch.cat(grad_bias) * grad_loss).to(bias.dtype)
        of_x = grad_x.mul_(factor).to(x_dtype)
        return (of_x, of_bias, None, None, None, None, None, *grad_tables)

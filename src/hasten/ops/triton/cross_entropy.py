"""Full-catalog cross-entropy in Triton: the logits are never written to memory.

The forward kernel keeps a running maximum and sum of exponentials for each query (online softmax,
Milakov & Gimelshein 2018). The backward pass computes the logits again, tile by tile
(:mod:`.catalog_gradients`): five matrix products instead of three, in exchange for T x N logits
that are neither written nor read. Sums and softmax are float32, and so are the logits; only
operands of the matrix products have a lower precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.ops.triton.catalog_gradients import Residuals, gradients
from hasten.ops.triton.tiles import Scores, load_rows, scores_of_tile


@triton.jit
def _log_sum_exp(
    x, table, bias, target_item, target_query, starts, lse, picked,
    queries, items, per_split,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
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
        j, scores, true = scores_of_tile(
            mine, i, tile * across + each, each, table, bias, target_item, target_query, starts,
            queries, items, WIDTH, PADDED, BLOCK,
        )  # fmt: skip
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
    """Sum of cross-entropies, as of :func:`~hasten.ops.losses.catalog_loss`.

    target, query: as there; with several targets of a query, a target of -1 is none. dtype: of the
    matrix products. residual_scale: of residuals as operands of this type, where a query has one
    target. block: rows of a tile, None: chosen by width and type.
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
        scores = Scores.build(x, blocks, bias, target, query, dtype, block)
        lse_parts, picked_parts = [], []
        for part in scores.parts:
            grid, each = part.split(scores.tiling, len(x))
            lse, picked = x.new_empty(2, grid[1], len(x), dtype=torch.float32).unbind()
            _log_sum_exp[grid](
                scores.x, part.table, part.bias,
                part.targets.item, part.targets.query, part.targets.starts, lse, picked,
                len(x), len(part.table), each, **scores.tiling.options,
            )  # fmt: skip
            lse_parts.append(lse)
            picked_parts.append(picked)
        lse = torch.logsumexp(torch.cat(lse_parts), 0)
        scale, counts = lse.new_full((1,), residual_scale), None
        if query is not None:
            ones = (target >= 0).to(lse.dtype)
            counts = torch.zeros_like(lse).index_add_(0, query, ones)  # bincount would wait
            if residual_scale != 1:
                scale /= counts.max().clamp(min=1)
        ctx.scores, ctx.residuals = scores, Residuals(lse, counts, 0.0, 1.0, scale)
        weighted = lse if counts is None else lse * counts
        return weighted.sum() - torch.cat(picked_parts).sum()

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_bias, of_tables = gradients(ctx.scores, ctx.residuals, grad_loss)
        return of_x, of_bias, None, None, None, None, None, *of_tables

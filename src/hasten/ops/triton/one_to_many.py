"""1-N binary cross-entropy in Triton: the scores are never written to memory.

The loss is that of :mod:`hasten.ops.losses.one_to_many_loss`. The forward kernel sums

    softplus(s) - (1 - ε) [pair is true] s - (ε / N) s

over tiles of scores; the backward pass computes the scores again (:mod:`.catalog_gradients`).
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
def _losses(
    x, table, bias, target_item, target_query, starts, out,
    queries, items, per_split, share, hit,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss of each query over some tiles."""
    tile, split = tl.program_id(0), tl.program_id(1)
    i = tile * BLOCK + tl.arange(0, BLOCK)
    mine = load_rows(x, i, queries, WIDTH, PADDED)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    across = tl.cdiv(items, BLOCK)
    for each in range(split * per_split, tl.minimum((split + 1) * per_split, across)):
        j, scores, true = scores_of_tile(
            mine, i, tile * across + each, each, table, bias, target_item, target_query, starts,
            queries, items, WIDTH, PADDED, BLOCK,
        )  # fmt: skip
        # log(1 + e) with the digits that 1 + e loses
        decay = tl.exp(-tl.abs(scores))
        above = 1.0 + decay
        lost = tl.where(above == 1.0, 1.0, decay / tl.where(above == 1.0, 1.0, above - 1.0))
        log = tl.where(above == 1.0, decay, tl.log(above) * lost)
        losses = tl.maximum(scores, 0.0) + log - (share + hit * true) * scores
        total += tl.sum(tl.where((j < items)[None, :], losses, 0.0), 1)
    tl.store(out + split * queries + i, total, mask=i < queries)


def one_to_many(
    x: Tensor,
    blocks: Sequence[Tensor],
    row: Tensor,
    item: Tensor,
    bias: Tensor | None,
    smoothing: float,
    dtype: torch.dtype,
    residual_scale: float,
    block: int | None = None,
) -> Tensor:
    """The sum over all queries and catalog rows of the binary cross-entropy.

    row, item: int64 [P], the true pairs; an item of -1 is none. dtype: of the matrix products.
    residual_scale: of residuals as operands of this type. block:
    rows of a tile, None: chosen by width and type.
    """
    args = x, bias, row, item, smoothing, dtype, residual_scale, block
    result: Tensor = _OneToMany.apply(*args, *blocks)
    return result


class _OneToMany(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        row: Tensor,
        item: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        residual_scale: float,
        block: int | None,
        *blocks: Tensor,
    ) -> Tensor:
        scores = Scores.build(x, blocks, bias, item, row, dtype, block)
        share, hit = smoothing / sum(map(len, blocks)), 1.0 - smoothing
        loss = x.new_zeros((), dtype=torch.float32)
        for part in scores.parts:
            grid, each = part.split(scores.tiling, len(x))
            losses = loss.new_empty(grid[1], len(x))
            _losses[grid](
                scores.x, part.table, part.bias,
                part.targets.item, part.targets.query, part.targets.starts, losses,
                len(x), len(part.table), each, share, hit, **scores.tiling.options,
            )  # fmt: skip
            loss += losses.sum()
        scale = loss.new_full((1,), residual_scale)
        ctx.scores, ctx.residuals = scores, Residuals(None, None, share, hit, scale)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_bias, of_tables = gradients(ctx.scores, ctx.residuals, grad_loss)
        return of_x, of_bias, None, None, None, None, None, None, *of_tables

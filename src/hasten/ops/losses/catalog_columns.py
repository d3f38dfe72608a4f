"""Full-catalog cross-entropy, a chunk of columns of the logits at a time.

:mod:`.catalog_loss` uses it where few rows of logits fit into a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.losses.catalog_targets import CatalogTargets
from hasten.ops.losses.half_residuals import residual_product, residual_scale
from hasten.ops.sharded_table import Shard


def by_columns(
    x: Tensor,
    targets: CatalogTargets,
    bias: Tensor | None,
    blocks: Sequence[Tensor],
    chunk_bytes: int,
    dtype: torch.dtype,
    shard: Shard | None,
) -> tuple[Tensor, list[Tensor]]:
    """All rows against a chunk of columns at a time: one pass for logsumexp, one for gradients."""
    chunks = parts_of(blocks, max(1, chunk_bytes // (4 * max(1, len(x)))))
    x_cast, scale = x.to(dtype), residual_scale(dtype, targets.largest_count)
    sum_dtype = accumulation_dtype(x)
    lse = torch.full((len(x),), -torch.inf, dtype=sum_dtype, device=x.device)
    query = torch.arange(len(x), device=x.device) if targets.query is None else targets.query
    picked = torch.zeros(len(x), dtype=sum_dtype, device=x.device)

    def scores_of(index: int, span: slice, columns: slice) -> Tensor:
        scores = (x_cast @ blocks[index][span].to(dtype).T).to(sum_dtype)
        return scores if bias is None else scores + bias[columns]

    def placed(columns: slice) -> tuple[Tensor, Tensor]:
        """Which targets are in a chunk, and their flat index in its scores (others: any index)."""
        local, width = targets.item - columns.start, columns.stop - columns.start
        inside = (local >= 0) & (local < width)
        if targets.weight is not None:
            inside &= targets.weight > 0
        return inside, query * width + local.clamp(0, width - 1)

    for index, span, columns in chunks:
        scores = scores_of(index, span, columns)
        lse = torch.logaddexp(lse, torch.logsumexp(scores, 1))
        inside, place = placed(columns)
        picked.index_add_(0, query, torch.where(inside, scores.view(-1)[place], 0.0))
    if shard is not None:
        lse = shard.log_sum_exp(lse)
    grad_x = torch.zeros(x.shape, dtype=sum_dtype, device=x.device)
    grads = [x.new_zeros(block.shape, dtype=accumulation_dtype(block)) for block in blocks]
    grad_bias = zeros_like_bias(bias, sum_dtype)
    for index, span, columns in chunks:
        residual = targets.multiply_by_counts_(
            (scores_of(index, span, columns) - lse[:, None]).exp_(), 0
        )
        inside, place = placed(columns)
        residual.view(-1).index_add_(0, place, -inside.to(sum_dtype))
        if bias is not None:
            grad_bias[0][columns] = residual.sum(0)
        part = (residual if scale == 1 else residual.mul_(scale)).to(dtype)
        grads[index][span] = residual_product(part.T, x_cast, scale)
        grad_x += residual_product(part, blocks[index][span].to(dtype), scale)
    if shard is not None:  # only the targets among these rows
        weight = torch.ones_like(query) if targets.weight is None else targets.weight
        counts = lse.new_zeros(len(x)).index_add_(0, query, weight.to(sum_dtype))
        loss = (lse * counts - picked).sum()
    else:
        loss = (targets.multiply_by_counts_(lse[:, None], 0)[:, 0] - picked).sum()
    shaped = [g.to(b.dtype) for g, b in zip(grads, blocks, strict=True)]
    return loss, [grad_x if scale != 1 else grad_x.to(x.dtype), *grad_bias, *shaped]


def zeros_like_bias(bias: Tensor | None, dtype: torch.dtype) -> list[Tensor]:
    """The gradient of the bias, if there is one."""
    return [] if bias is None else [torch.zeros_like(bias, dtype=dtype, requires_grad=False)]


def offsets(blocks: Sequence[Tensor]) -> list[int]:
    """The first row of each block in the stacked catalog, then the number of all rows."""
    return [0, *accumulate(map(len, blocks))]


def parts_of(blocks: Sequence[Tensor], step: int) -> list[tuple[int, slice, slice]]:
    """Parts of ``step`` catalog rows: (block, rows of the block, columns of the logits)."""
    parts = []
    for index, (block, start) in enumerate(zip(blocks, offsets(blocks), strict=False)):
        for begin in range(0, len(block), max(1, step)):
            end = min(begin + step, len(block))
            parts.append((index, slice(begin, end), slice(start + begin, start + end)))
    return parts

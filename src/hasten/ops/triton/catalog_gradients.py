"""Gradients of a loss over all scores of queries and catalog rows, by tiles in Triton.

With scores s = x eᵀ + b and residuals r = ∂loss/∂s, the gradients are r e, rᵀ x and the sums of r
over the queries. One kernel computes the first, or the other two: a program owns a tile of queries
(or catalog rows), goes over the tiles of the other side, computes scores and residuals again and
sums their products in float32. Scores and residuals stay in registers and shared memory. No atomic
operations: equal inputs give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.ops.triton.tiles import Part, Scores, is_target, load_rows


@dataclass(frozen=True)
class Residuals:
    """What the residual of a score depends on, besides the score.

    Softmax: ``counts * exp(s - lse) - hit * [pair is true]`` with lse, counts: float32 [T].
    Sigmoid, where lse is None: ``sigmoid(s) - share - hit * [pair is true]``.

    scale: float32 [1], multiplies residuals before they are rounded to the type of the products.
    """

    lse: Tensor | None
    counts: Tensor | None
    share: float
    hit: float
    scale: Tensor


@triton.jit
def _gradient(
    own, other, bias, target_item, target_query, starts, lse, counts, scale, out, bias_out,
    own_rows, other_rows, across, per_split, share, hit,
    OF_TABLE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """OF_TABLE: own are catalog rows, other queries. across: tiles of items."""
    tile, split = tl.program_id(0), tl.program_id(1)
    i = tile * BLOCK + tl.arange(0, BLOCK)
    mine = load_rows(own, i, own_rows, WIDTH, PADDED)
    total = tl.zeros([BLOCK, PADDED], dtype=tl.float32)
    bias_total = tl.zeros([BLOCK], dtype=tl.float32)
    stop = tl.minimum((split + 1) * per_split, tl.cdiv(other_rows, BLOCK))
    for each in range(split * per_split, stop):
        j = each * BLOCK + tl.arange(0, BLOCK)
        theirs = load_rows(other, j, other_rows, WIDTH, PADDED)
        scores = tl.dot(mine, tl.trans(theirs))
        if OF_TABLE:
            query, item, queries, items = j[None, :], i[:, None], other_rows, own_rows
            number = each * across + tile
        else:
            query, item, queries, items = i[:, None], j[None, :], own_rows, other_rows
            number = tile * across + each
        if bias is not None:
            scores += tl.load(bias + item, mask=item < items, other=0.0).to(tl.float32)
        if lse is None:
            decay = tl.exp(-tl.abs(scores))
            residual = tl.where(scores >= 0, 1.0, decay) / (1.0 + decay) - share
        else:
            residual = tl.exp(scores - tl.load(lse + query, mask=query < queries, other=0.0))
            if counts is not None:
                residual *= tl.load(counts + query, mask=query < queries, other=0.0)
        residual -= hit * is_target(query, item, number, queries, target_item, target_query, starts)
        residual = tl.where((query < queries) & (item < items), residual, 0.0)
        if OF_TABLE:
            bias_total += tl.sum(residual, 1)
        low = (residual * tl.load(scale)).to(theirs.dtype)
        total = tl.dot(low, theirs, total)
    columns = tl.arange(0, PADDED)
    rows = split * own_rows + i.to(tl.int64)
    inside = i < own_rows
    mask = inside[:, None] & (columns < WIDTH)[None, :]
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], total, mask=mask)
    if OF_TABLE and bias_out is not None:
        tl.store(bias_out + rows, bias_total, mask=inside)


def gradients(
    scores: Scores, residuals: Residuals, grad_loss: Tensor
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """The gradients of x [T, D], the bias [N] and the blocks [N_i, D], each in its type."""
    factor = grad_loss / residuals.scale
    of_x = torch.zeros_like(scores.x, dtype=torch.float32)
    of_bias, of_tables = [], []
    for part in scores.parts:
        of_x += _sums(scores, part, residuals, of_table=False)[0]
        of_table, of_part = _sums(scores, part, residuals, of_table=True)
        of_tables.append(of_table.mul_(factor).to(part.dtype))
        if part.bias is not None and of_part is not None:
            of_bias.append(of_part.mul_(grad_loss).to(part.bias.dtype))
    return of_x.mul_(factor).to(scores.dtype), torch.cat(of_bias) if of_bias else None, of_tables


def _sums(
    scores: Scores, part: Part, residuals: Residuals, of_table: bool
) -> tuple[Tensor, Tensor | None]:
    """Sums of residuals and rows for each row of x, or of the table and then of the bias too."""
    x, table, tiling, targets = scores.x, part.table, scores.tiling, part.targets
    own, other = (table, x) if of_table else (x, table)
    own_tiles = tiling.tiles(len(own))
    splits, each = tiling.split(own_tiles, tiling.tiles(len(other)))
    sums = x.new_empty(splits, *own.shape, dtype=torch.float32)
    wants_bias = of_table and part.bias is not None
    bias_sums = sums.new_empty(splits, len(own)) if wants_bias else None
    _gradient[(own_tiles, splits)](
        own, other, part.bias, targets.item, targets.query, targets.starts,
        residuals.lse, residuals.counts, residuals.scale, sums, bias_sums,
        len(own), len(other), tiling.tiles(len(table)), each, residuals.share, residuals.hit,
        OF_TABLE=of_table, **tiling.options,
    )  # fmt: skip
    return _summed(sums), None if bias_sums is None else _summed(bias_sums)


def _summed(parts: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else parts.sum(0)

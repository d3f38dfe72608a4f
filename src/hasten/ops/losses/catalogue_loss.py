"""Full-catalogue cross-entropy without the T×N matrix of logits.

``sum_t [ logsumexp_j(x_t · e_j + b_j) - (x_t · e_target + b_target) ]`` over all N catalogue rows.
A row of x may have several targets; their terms share its scores.
Forward and backward are computed together, a chunk of rows at a time while the chunk is in cache:
logits, softmax and both gradients, so the work is three matrix products and nothing is computed
twice. The backward pass only scales the stored gradients.

Memory: one chunk of logits (``chunk_bytes`` in float32) and the gradients. If even a few rows of
logits do not fit, columns are chunked too, with a running logsumexp and a second pass (four
products). Sums and softmax are float32; under bf16 and fp16 the logits and products are in these,
as under autocast, the products of fp16 residuals summed in float32 (:mod:`.half_residuals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dense.product import product, product_into, rounded_rows, uses_onednn
from hasten.ops.dtypes import accumulation_dtype, upcast
from hasten.ops.losses.half_residuals import residual_product, residual_scale

#: bytes of logits held at once: near the second-level cache on CPUs, a large GEMM on GPUs
CHUNK_BYTES_CPU = 16 << 20
CHUNK_BYTES_DEVICE = 512 << 20
_FEWEST_ROWS = 64
#: elements of a table that are converted to a lower precision, and multiplied, at once
_CONVERTED = 1 << 20


def catalogue_cross_entropy(
    x: Tensor,
    blocks: Sequence[Tensor],
    targets: Tensor,
    bias: Tensor | None = None,
    chunk_bytes: int | None = None,
    query_of_target: Tensor | None = None,
) -> Tensor:
    """Sum of cross-entropies of ``x`` [T, D] against the stacked blocks [N_i, D]: a scalar.

    targets: int64 [T] rows of the stacked catalogue, one for each row of x; or [P], with
    query_of_target: int64 [P] ascending, the row of x of each target, a pair at most once.
    bias: [N] or None. chunk_bytes: of the logits held at once (None: by device). One block is the
    whole table; several are its shards.
    """
    if chunk_bytes is None:
        chunk_bytes = CHUNK_BYTES_CPU if x.device.type == "cpu" else CHUNK_BYTES_DEVICE
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    result: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        x, _Targets.build(targets, query_of_target, len(x)), bias, chunk_bytes, dtype, *blocks
    )
    return result


def catalogue_cross_entropy_reference(
    x: Tensor,
    blocks: Sequence[Tensor],
    targets: Tensor,
    bias: Tensor | None = None,
    query_of_target: Tensor | None = None,
) -> Tensor:
    """The same, with all logits at once."""
    logits = x @ torch.cat(list(blocks)).T
    if bias is not None:
        logits = logits + bias
    if query_of_target is not None:
        logits = logits[query_of_target]
    return F.cross_entropy(upcast(logits), targets, reduction="sum")


@dataclass(frozen=True, eq=False)
class _Targets:
    """item, query: int64 [P]. counts: [T] targets of each row; None if each has one, in order."""

    item: Tensor
    query: Tensor
    counts: Tensor | None

    @classmethod
    def build(cls, targets: Tensor, query: Tensor | None, rows: int) -> _Targets:
        if query is None:
            return cls(targets, torch.arange(rows, device=targets.device), None)
        return cls(targets, query, torch.bincount(query, minlength=rows))

    def within(self, start: int, stop: int) -> slice:
        """The slice of the targets of rows ``start`` to ``stop``."""
        if self.counts is None:
            return slice(start, stop)
        edges = torch.tensor([start, stop], device=self.query.device)
        return slice(*torch.searchsorted(self.query, edges).tolist())

    def times_(self, residual: Tensor, start: int) -> Tensor:
        """Multiply the softmaxes of the rows from ``start`` on by their numbers of targets."""
        if self.counts is not None:
            residual *= self.counts[start : start + len(residual), None]
        return residual

    def residual_scale(self, dtype: torch.dtype) -> float:
        """The scale of the residuals as operands of this type."""
        if dtype != torch.float16 or self.counts is None or not len(self.counts):
            return residual_scale(dtype)
        return residual_scale(dtype, float(self.counts.max()))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        targets: _Targets,
        bias: Tensor | None,
        chunk_bytes: int,
        dtype: torch.dtype,
        *blocks: Tensor,
    ) -> Tensor:
        count = sum(len(block) for block in blocks)
        rows = chunk_bytes // (4 * count)
        with torch.autocast(x.device.type, enabled=False):
            if rows >= _FEWEST_ROWS or rows >= len(x):
                loss, grads = _by_rows(x, targets, bias, blocks, rows, dtype)
            else:
                loss, grads = _by_columns(x, targets, bias, blocks, chunk_bytes, dtype)
        ctx.has_bias, ctx.dtype = bias is not None, x.dtype
        ctx.save_for_backward(*grads)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_bias, *grad_blocks = ctx.saved_tensors
        scaled = [g * grad_loss.to(g.dtype) for g in (grad_x, grad_bias, *grad_blocks)]
        return (
            scaled[0].to(ctx.dtype),
            None,
            scaled[1] if ctx.has_bias else None,
            None,
            None,
            *scaled[2:],
        )


def _offsets(blocks: Sequence[Tensor]) -> list[int]:
    starts = [0]
    for block in blocks:
        starts.append(starts[-1] + len(block))
    return starts


def _by_rows(
    x: Tensor,
    targets: _Targets,
    bias: Tensor | None,
    blocks: Sequence[Tensor],
    rows: int,
    dtype: torch.dtype,
) -> tuple[Tensor, list[Tensor]]:
    """A chunk of rows against the whole catalogue at a time: three products."""
    starts = _offsets(blocks)
    low, scale = x.to(dtype), targets.residual_scale(dtype)
    # fp16 gradients are cast after the backward pass has scaled them
    kind = accumulation_dtype(x)
    grad_x = torch.zeros_like(x, dtype=kind if x.dtype == torch.float16 else x.dtype)
    grads = [x.new_zeros(block.shape, dtype=accumulation_dtype(block)) for block in blocks]
    grad_bias, loss = x.new_zeros(starts[-1], dtype=kind), x.new_zeros((), dtype=kind)
    few = x.device.type == "cpu" and (dtype != kind or uses_onednn(x, blocks[0].T))
    least = 64 if dtype != kind else 8
    rows = max(1, min(rows, rounded_rows(len(x), least) if few else len(x)))
    if few:  # zeros, so that the last chunk is of one of few sizes
        last = len(x) % rows
        low = F.pad(low, (0, 0, 0, min(rows, rounded_rows(last, least)) - last))
    step = starts[-1] if dtype == kind else max(1, _CONVERTED // max(1, x.shape[1]))
    parts = [
        (index, slice(begin, begin + step), slice(starts[index] + begin, starts[index] + end))
        for index, block in enumerate(blocks)
        for begin in range(0, len(block), max(1, step))
        for end in (min(begin + step, len(block)),)
    ]

    def table_of(index: int, span: slice) -> Tensor:
        return blocks[index][span].to(dtype)

    # converted once for several chunks, else part by part
    tables = [table_of(*part[:2]) for part in parts] if rows < len(x) else None
    logits = x.new_empty(rows, starts[-1], dtype=dtype)
    # logits in a lower precision become residuals a few rows at a time, in a buffer of the sums'
    piece = rows if dtype == kind else -(-rows // 8)
    wide = logits if dtype == kind else logits.new_empty(piece, starts[-1], dtype=kind)
    for start in range(0, len(x), rows):
        chunk = low[start : start + rows]
        scores = logits[: len(chunk)]
        for number, (index, span, columns) in enumerate(parts):
            table = tables[number] if tables else table_of(index, span)
            product_into(scores[:, columns], chunk, table.T)
        real = len(x) - start
        scores[real:] = 0
        for first, part in enumerate(torch.split(scores[:real], piece)):
            first = start + first * piece  # noqa: PLW2901
            residual = part if dtype == kind else wide[: len(part)].copy_(part)
            some = targets.within(first, first + len(part))
            place = (targets.query[some] - first) * starts[-1] + targets.item[some]
            if bias is not None:
                residual += bias
            torch.log_softmax(residual, dim=1, out=residual)
            flat = residual.view(-1)
            loss -= flat[place].sum()
            targets.times_(residual.exp_(), first)
            flat[place] -= 1.0
            if bias is not None:
                grad_bias += residual.sum(0)
            if scale != 1:
                residual *= scale
            if dtype != kind:
                part.copy_(residual)
        for number, (index, span, columns) in enumerate(parts):
            table = tables[number] if tables else table_of(index, span)
            part = scores[:, columns]
            _accumulate(grads[index][span], part.T, chunk, scale)
            if number == 0 and scale == 1:
                grad_x[start : start + rows] = product(part, table)[:real]
            else:
                grad_x[start : start + rows] += residual_product(part, table, scale)[:real]
    return loss, [grad_x, grad_bias, *(g.to(b.dtype) for g, b in zip(grads, blocks, strict=True))]


def _by_columns(
    x: Tensor,
    targets: _Targets,
    bias: Tensor | None,
    blocks: Sequence[Tensor],
    chunk_bytes: int,
    dtype: torch.dtype,
) -> tuple[Tensor, list[Tensor]]:
    """All rows against a chunk of columns at a time: one pass for logsumexp, one for gradients."""
    starts = _offsets(blocks)
    columns = max(1, chunk_bytes // (4 * max(1, len(x))))
    low, scale = x.to(dtype), targets.residual_scale(dtype)
    kind = accumulation_dtype(x)
    lse = torch.full((len(x),), -torch.inf, dtype=kind, device=x.device)
    picked = torch.zeros(len(x), dtype=kind, device=x.device)

    def chunks() -> list[tuple[int, int, int]]:
        """(block, first row within it, last row) of every chunk of columns."""
        return [
            (index, begin, min(begin + columns, len(block)))
            for index, block in enumerate(blocks)
            for begin in range(0, len(block), columns)
        ]

    def scores_of(index: int, begin: int, end: int) -> Tensor:
        scores = (low @ blocks[index][begin:end].to(dtype).T).to(kind)
        if bias is not None:
            scores = scores + bias[starts[index] + begin : starts[index] + end]
        return scores

    def placed(index: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Which targets are in a chunk, and where in its scores, for others some place."""
        local = targets.item - (starts[index] + begin)
        inside = (local >= 0) & (local < end - begin)
        return inside, targets.query * (end - begin) + local.clamp(0, end - begin - 1)

    for index, begin, end in chunks():
        scores = scores_of(index, begin, end)
        lse = torch.logaddexp(lse, torch.logsumexp(scores, 1))
        inside, place = placed(index, begin, end)
        picked.index_add_(0, targets.query, torch.where(inside, scores.view(-1)[place], 0.0))
    grad_x = torch.zeros(x.shape, dtype=kind, device=x.device)
    grads = [x.new_zeros(block.shape, dtype=accumulation_dtype(block)) for block in blocks]
    grad_bias = torch.zeros(starts[-1], dtype=kind, device=x.device)
    for index, begin, end in chunks():
        residual = targets.times_((scores_of(index, begin, end) - lse[:, None]).exp_(), 0)
        inside, place = placed(index, begin, end)
        residual.view(-1).index_add_(0, place, -inside.to(kind))
        if bias is not None:
            grad_bias[starts[index] + begin : starts[index] + end] = residual.sum(0)
        part = (residual if scale == 1 else residual.mul_(scale)).to(dtype)
        grads[index][begin:end] = residual_product(part.T, low, scale)
        grad_x += residual_product(part, blocks[index][begin:end].to(dtype), scale)
    loss = (targets.times_(lse[:, None], 0)[:, 0] - picked).sum()
    shaped = [g.to(b.dtype) for g, b in zip(grads, blocks, strict=True)]
    return loss, [grad_x if scale != 1 else grad_x.to(x.dtype), grad_bias, *shaped]


def _accumulate(total: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """Add left @ right / scale to total, accumulating in its dtype."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += residual_product(left, right, scale)

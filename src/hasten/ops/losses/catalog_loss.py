"""Full-catalog cross-entropy without the T×N matrix of logits.

``sum_t [ logsumexp_j(x_t · e_j + b_j) - (x_t · e_target + b_target) ]`` over all N catalog rows.
x has one row for each query. If a query has several targets, the sum has a term for each, and the
logits of the query are computed only once.

Forward and backward are computed together, a chunk of rows at a time while the chunk is in cache:
logits, softmax and both gradients, so the work is three matrix products and nothing is computed
twice. The backward pass only scales the stored gradients.

Memory: the gradients and one chunk of logits, which takes ``chunk_bytes`` in float32. If even a few
rows of logits do not fit, columns are chunked instead, with a running logsumexp and a second pass
(four products, :mod:`.catalog_columns`). Sums and softmax are float32. Under bf16 or fp16, logits
and matrix products have that type, as under autocast. The residuals are the gradients of the loss
with respect to the logits, softmax minus targets; products of fp16 residuals are summed in float32
(:mod:`.half_residuals`), on a GPU those of bf16 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dense.product import product_into, rounded_rows, uses_onednn
from hasten.ops.dtypes import accumulation_dtype, upcast
from hasten.ops.losses.catalog_columns import by_columns, offsets, parts_of, zeros_like_bias
from hasten.ops.losses.catalog_targets import CatalogTargets, without_padding
from hasten.ops.losses.half_residuals import accumulate_product, accumulate_rows, residual_scale
from hasten.ops.sharded_table import Shard
from hasten.ops.triton.choice import uses_triton

#: bytes of logits held at once: near the second-level cache on CPUs, a large GEMM on GPUs
CHUNK_BYTES_CPU = 16 << 20
CHUNK_BYTES_DEVICE = 512 << 20
#: if a chunk would have fewer rows of logits than this, chunk the columns instead
_MIN_CHUNK_ROWS = 64
#: elements of the catalog that are converted to a lower precision, and multiplied, at a time
_ELEMENTS_PER_CONVERSION = 1 << 20
#: columns to which logits are aligned on a GPU, and multiplications from which on they are
_ALIGNED_COLUMNS, _MIN_ALIGNED_PRODUCT = 64, 1 << 28


def catalog_cross_entropy(
    x: Tensor,
    blocks: Sequence[Tensor],
    targets: Tensor | CatalogTargets,
    bias: Tensor | None = None,
    chunk_bytes: int | None = None,
    query_of_target: Tensor | None = None,
    shard: Shard | None = None,
) -> Tensor:
    """Sum of cross-entropies of ``x`` [T, D] against the stacked blocks [N_i, D]: a scalar.

    targets: int64 [T], for each row of x the index of its target in the stacked catalog. If rows
    have several targets: int64 [P], with query_of_target, int64 [P] ascending, the row of x that
    each target belongs to; a target occurs at most once in a row. :class:`CatalogTargets` in the
    place of both saves synchronizations. bias: [N] or None. chunk_bytes: size of the logits that
    are held at once; None: by the device, or no logits at all where a Triton kernel can run.
    blocks: the whole table as one block, or its shards. shard: ``blocks`` are the rows of this
    process alone, and so are the targets, numbered from its first row; x, the same on all
    processes, are all queries. The sum is that of these targets, and gradients are those of these
    rows: both add up over processes (:mod:`.table_losses`).
    """
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    if isinstance(targets, Tensor):
        targets = CatalogTargets.build(targets, query_of_target, len(x))
    if chunk_bytes is None:
        if shard is None and uses_triton("cross-entropy", x, x.shape[1], dtype):
            from hasten.ops.triton.cross_entropy import cross_entropy  # noqa: PLC0415

            scale, item = residual_scale(dtype), without_padding(targets.item, targets.weight)
            return cross_entropy(x, blocks, item, bias, targets.query, dtype, scale)
        chunk_bytes = CHUNK_BYTES_CPU if x.device.type == "cpu" else CHUNK_BYTES_DEVICE
    result: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        x, targets, bias, chunk_bytes, dtype, shard, *blocks
    )
    return result


def catalog_cross_entropy_reference(
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


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        targets: CatalogTargets,
        bias: Tensor | None,
        chunk_bytes: int,
        dtype: torch.dtype,
        shard: Shard | None,
        *blocks: Tensor,
    ) -> Tensor:
        # of the same number of queries on all processes, which merge their sums
        count = sum(len(block) for block in blocks) if shard is None else shard.largest
        rows = chunk_bytes // (4 * count)
        with torch.autocast(x.device.type, enabled=False):
            if rows >= _MIN_CHUNK_ROWS or rows >= len(x):
                loss, grads = _by_rows(x, targets, bias, blocks, rows, dtype, shard)
            else:
                loss, grads = by_columns(x, targets, bias, blocks, chunk_bytes, dtype, shard)
        ctx.has_bias, ctx.dtype, ctx.grads = bias is not None, x.dtype, grads
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        assert ctx.grads is not None, "this backward pass can run only once"
        (grad_x, *grads), ctx.grads = ctx.grads, None
        torch._foreach_mul_([grad_x, *grads], grad_loss)  # in place: they are as large as the table
        grad_bias = grads.pop(0) if ctx.has_bias else None
        return grad_x.to(ctx.dtype), None, grad_bias, None, None, None, *grads


def _alignment(x: Tensor, items: int) -> int:
    """Rows of logits, and the parts of their products, begin at multiples of so many columns.

    For operands whose rows are not aligned cuBLAS takes kernels that are several times slower. For
    small products that costs less than one more launch.
    """
    small = x.numel() * items < _MIN_ALIGNED_PRODUCT
    return 1 if small or x.device.type == "cpu" else _ALIGNED_COLUMNS


def _by_rows(
    x: Tensor,
    targets: CatalogTargets,
    bias: Tensor | None,
    blocks: Sequence[Tensor],
    rows: int,
    dtype: torch.dtype,
    shard: Shard | None,
) -> tuple[Tensor, list[Tensor]]:
    """A chunk of rows against the whole catalog at a time: three products."""
    starts = offsets(blocks)
    x_cast, scale = x.to(dtype), residual_scale(dtype, targets.largest_count)
    # the gradient of an fp16 x stays in the type of sums until the backward pass has scaled it
    sum_dtype = accumulation_dtype(x)
    fresh = x.new_empty if len(x) else x.new_zeros  # the first products are written, not added
    grad_x = fresh(x.shape, dtype=sum_dtype if x.dtype == torch.float16 else x.dtype)
    grads = [fresh(block.shape, dtype=accumulation_dtype(block)) for block in blocks]
    picked, grad_bias = [], zeros_like_bias(bias, sum_dtype)
    # oneDNN compiles code for every new number of rows: pad the last chunk, so that few occur
    pads_last = x.device.type == "cpu" and (dtype != sum_dtype or uses_onednn(x, blocks[0].T))
    multiple = 64 if dtype != sum_dtype else 8
    rows = max(1, min(rows, rounded_rows(len(x), multiple) if pads_last else len(x)))
    if pads_last:
        last = len(x) % rows
        x_cast = F.pad(x_cast, (0, 0, 0, min(rows, rounded_rows(last, multiple)) - last))
    # pad the logits, and multiply by the last few rows of the catalog separately
    aligned = _alignment(x, starts[-1])
    step, line = max(aligned, starts[-1] // aligned * aligned), starts[-1] + -starts[-1] % aligned
    if x.device.type == "cpu" and dtype != sum_dtype:
        step = max(1, _ELEMENTS_PER_CONVERSION // max(1, x.shape[1]))
    parts = parts_of(blocks, step)

    def table_of(index: int, span: slice) -> Tensor:
        return blocks[index][span].to(dtype)

    # with several chunks of rows, or on a GPU, convert the parts once and keep them
    keeps = rows < len(x) or x.device.type != "cpu"
    tables = [table_of(*part[:2]) for part in parts] if keeps else None
    logits = x.new_empty(rows, line, dtype=dtype)
    padding = line - starts[-1]
    padded_bias = bias if bias is None or not padding else F.pad(bias, (0, padding))
    # low-precision logits become residuals a few rows at a time, in a buffer of the type of sums;
    # on a GPU all at once, because the launches would take longer
    piece = rows if dtype == sum_dtype or x.device.type != "cpu" else -(-rows // 8)
    buffer = logits if dtype == sum_dtype else logits.new_empty(piece, line, dtype=sum_dtype)
    for start in range(0, len(x), rows):
        chunk = x_cast[start : start + rows]
        scores = logits[: len(chunk)]
        for number, (index, span, columns) in enumerate(parts):
            table = tables[number] if tables else table_of(index, span)
            product_into(scores[:, columns], chunk, table.T)
        if padding:  # its probabilities and residuals are 0
            scores[:, starts[-1] :] = -torch.inf
        unpadded = min(len(chunk), len(x) - start)
        if unpadded < len(chunk):
            scores[unpadded:] = 0
        for begin in range(0, unpadded, piece):
            score_rows, first = scores[begin : min(begin + piece, unpadded)], start + begin
            work = score_rows if dtype == sum_dtype else buffer[: len(score_rows)].copy_(score_rows)
            picked.append(_to_residuals_(work, targets, first, padded_bias, shard))
            if bias is not None:
                grad_bias[0] += work.sum(0)[: starts[-1]]
            if scale != 1:
                work *= scale
            if dtype != sum_dtype:
                score_rows.copy_(work)
        for number, (index, span, columns) in enumerate(parts):
            table = tables[number] if tables else table_of(index, span)
            residual = scores[:, columns]
            accumulate_product(grads[index][span], residual.T, chunk, scale, start == 0)
            accumulate_rows(grad_x[start : start + rows], residual, table, scale, number == 0)
    loss = -reduce(torch.add, picked) if picked else x.new_zeros((), dtype=sum_dtype)
    return loss, [grad_x, *grad_bias, *(g.to(b.dtype) for g, b in zip(grads, blocks, strict=True))]


def _to_residuals_(
    work: Tensor, targets: CatalogTargets, first: int, bias: Tensor | None, shard: Shard | None
) -> Tensor:
    """Turn rows of logits, from row ``first`` on, into residuals in place.

    Returns the sum of the log-probabilities of their targets.
    """
    at_target, weight = targets.places(first, first + len(work), work.shape[1])
    if bias is not None:
        work += bias
    _log_softmax_(work, shard)
    flat = work.view(-1)
    picked = (flat[at_target] if weight is None else flat[at_target] * weight).sum()
    targets.multiply_by_counts_(work.exp_(), first)
    ones = torch.ones_like(at_target, dtype=work.dtype) if weight is None else weight
    flat.index_add_(0, at_target, ones.to(work.dtype), alpha=-1)
    return picked


def _log_softmax_(scores: Tensor, shard: Shard | None) -> None:
    """In place, over the columns; those of all processes if there is a shard."""
    if shard is None:
        torch.log_softmax(scores, dim=1, out=scores)
    else:
        scores -= shard.log_sum_exp(torch.logsumexp(scores, 1))[:, None]

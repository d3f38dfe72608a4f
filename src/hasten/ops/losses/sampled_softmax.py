"""The loss ``sampled-softmax``: each target against items that are sampled once for the batch.

``sum_t [ log(exp(s_t+) + sum_j exp(s_tj + w_j)) - s_t+ ]`` with s = x · e. w_j =
log(c_j / E[c_j]), where c_j is the number of times that item j was drawn (the logQ correction:
Bengio & Senécal 2008, equation 12; Yi et al. 2019): the sum over j estimates the sum over the whole
catalog without bias. The target is not sampled, so its score is not corrected.
Forward and backward are computed together, a chunk of targets at a time, as in
:mod:`.catalog_loss`: peak memory is one chunk of logits, and the gradients of x and rows.
Softmax and sums are in float32; under autocast, matrix products are in bf16 or fp16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dense.product import padded_rows
from hasten.ops.dtypes import accumulation_dtype, autocast_dtype
from hasten.ops.losses.catalog_loss import CHUNK_BYTES_CPU, CHUNK_BYTES_DEVICE
from hasten.ops.losses.half_residuals import residual_product, residual_scale


def sampled_softmax(
    x: Tensor,
    rows: Tensor,
    targets: Tensor,
    sampled: Tensor,
    log_weights: Tensor,
    masked: Tensor,
    chunk_bytes: int | None = None,
) -> Tensor:
    """The sum of the losses of T targets.

    x: [T, D], the states that predict the targets. rows: [R, D], item embeddings. targets: int64
    [T] and sampled: int64 [S], indices into rows. log_weights: [S], w above. masked: int64 [M]
    ascending ``t * S + j``, pairs that are left out. chunk_bytes: of the logits held at once (None:
    by device).
    """
    if chunk_bytes is None:
        chunk_bytes = CHUNK_BYTES_CPU if x.device.type == "cpu" else CHUNK_BYTES_DEVICE
    size = max(1, chunk_bytes // (4 * len(sampled)))
    result: Tensor = _SampledSoftmax.apply(  # type: ignore[no-untyped-call]
        x, rows, targets, sampled, log_weights, masked, size, autocast_dtype(x)
    )
    return result


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rows: Tensor,
        targets: Tensor,
        sampled: Tensor,
        log_weights: Tensor,
        masked: Tensor,
        size: int,
        dtype: torch.dtype,
    ) -> Tensor:
        kind, scale, columns = accumulation_dtype(x), residual_scale(dtype), len(sampled)
        # in float32 until backward has multiplied them by the loss scale: cast to fp16 earlier,
        # small gradients would become zero
        grad_x, grad_rows = (torch.zeros_like(given, dtype=kind) for given in (x, rows))
        loss = torch.zeros((), dtype=kind, device=x.device)
        with torch.autocast(x.device.type, enabled=False):
            table = padded_rows(rows.index_select(0, sampled).to(dtype))
            grad_table = torch.zeros(table.shape, dtype=kind, device=x.device)
            for start in range(0, len(x), size):
                part = slice(start, start + size)
                indices = targets[part]
                count = len(indices)
                target_rows = rows.index_select(0, indices).to(dtype)
                chunk = x[part].to(dtype)
                score = (chunk * target_rows).sum(1, dtype=kind)
                chunk = padded_rows(chunk)
                logits = (chunk @ table.T)[:count, :columns].to(kind) + log_weights
                left_out = _within(masked, start, count, len(x), columns)
                logits.view(-1).index_fill_(0, left_out, -torch.inf)
                total = torch.logaddexp(score, torch.logsumexp(logits, 1))
                loss += (total - score).sum()
                grad_score = torch.expm1(score - total)[:, None]
                grad_logits = logits.sub_(total[:, None]).exp_()
                if scale != 1:
                    grad_logits *= scale
                padding = len(table) - columns, len(chunk) - count
                low = F.pad(grad_logits.to(dtype), (0, padding[0], 0, padding[1]))
                grad_table += residual_product(low.T, chunk, scale)
                grad_x[part] = (
                    residual_product(low, table, scale)[:count] + grad_score * target_rows
                )
                grad_rows.index_add_(0, indices, grad_score * chunk[:count])
            grad_rows.index_add_(0, sampled, grad_table[:columns])
        ctx.dtypes = x.dtype, rows.dtype
        ctx.save_for_backward(grad_x, grad_rows)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [g * grad_loss.to(g.dtype) for g in ctx.saved_tensors]
        grads = (g.to(dtype) for g, dtype in zip(scaled, ctx.dtypes, strict=True))
        return *grads, None, None, None, None, None, None


def _within(masked: Tensor, start: int, count: int, rows: int, columns: int) -> Tensor:
    """The masked pairs of ``count`` rows of the logits from ``start`` on, counted from there."""
    if count < rows:
        edges = torch.tensor([start * columns, (start + count) * columns], device=masked.device)
        masked = masked[slice(*torch.searchsorted(masked, edges).tolist())]
    return masked - start * columns

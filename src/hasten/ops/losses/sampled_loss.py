"""The losses ``bce`` and ``gbce``: binary cross-entropy of one positive and k sampled negatives.

``sum_i [ beta * softplus(-s_i+) + sum_k softplus(s_ik-) ]`` over targets i, with s = x · e.
beta = 1 is the usual BCE (Kang & McAuley 2018, equation 7, for k = 1). gBCE (Petrov & Macdonald
2023, equations 10-11) corrects the overconfidence of sampling with
beta = alpha (t (1 - 1/alpha) + 1/alpha), alpha = k / (N - 1), and t = ``calibration`` in [0, 1].
softplus is computed in float32: stable for every score.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.table import Table

#: bytes of gathered rows held at once: they fit the second-level cache of CPUs
CHUNK_BYTES_CPU = 4 << 20
CHUNK_BYTES_DEVICE = 256 << 20


def gbce_beta(negatives: int, count: int, calibration: float) -> float:
    """The weight of the positive term: 1 at calibration 0, alpha at calibration 1."""
    alpha = negatives / (count - 1)
    return alpha * (calibration * (1 - 1 / alpha) + 1 / alpha)


def sampled_loss(x: Tensor, rows: Tensor, beta: float = 1.0) -> Tensor:
    """The sum over T rows: x [T, D] against rows [T, 1+k, D], the positive first."""
    # multiply and sum: the backward pass of bmm takes twice the time for such thin matrices
    scores = (x[:, None] * rows).sum(-1, dtype=accumulation_dtype(x))
    return beta * F.softplus(-scores[:, 0]).sum() + F.softplus(scores[:, 1:]).sum()


def sampled_loss_from_table(
    x: Tensor, table: Table, ids: Tensor, beta: float = 1.0, chunk_bytes: int | None = None
) -> Tensor:
    """The same from ids, int64 [T, 1+k], without materializing all gathered rows.

    Loss and gradients are computed together, a chunk of T at a time while its rows are in cache.
    chunk_bytes: of the rows held at once (None: by device).
    """
    if chunk_bytes is None:
        chunk_bytes = CHUNK_BYTES_CPU if x.device.type == "cpu" else CHUNK_BYTES_DEVICE
    size = max(1, chunk_bytes // (x.element_size() * ids.shape[1] * x.shape[1]))
    weight = table.block(0, len(table))
    result: Tensor = _FromTable.apply(x, weight, ids, beta, size)  # type: ignore[no-untyped-call]
    return result


class _FromTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ids: Tensor, beta: float, size: int) -> Tensor:
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        loss = torch.zeros((), dtype=accumulation_dtype(x), device=x.device)
        parts = zip(*(torch.split(tensor, size) for tensor in (x, ids, grad_x)), strict=True)
        for chunk, wanted, grad in parts:
            flat = wanted.reshape(-1)
            rows = weight.index_select(0, flat).view(*wanted.shape, -1)
            scores = (rows * chunk[:, None]).sum(-1, dtype=loss.dtype)
            loss += beta * F.softplus(-scores[:, 0]).sum() + F.softplus(scores[:, 1:]).sum()
            slope = torch.sigmoid_(scores)
            slope[:, 0].sub_(1).mul_(beta)
            slope = slope.to(rows.dtype)[..., None]
            grad_weight.index_add_(0, flat, (chunk[:, None] * slope).view(len(flat), -1).to(rows))
            grad.copy_((rows * slope).sum(1, dtype=loss.dtype))
        ctx.save_for_backward(grad_x, grad_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_weight = (g * grad_loss.to(g.dtype) for g in ctx.saved_tensors)
        return grad_x, grad_weight, None, None, None

"""Rows through the linear map of their type: ``out[i] = x[i] @ weight[t] + bias[t]``.

Rows of a type stand together, so that a type is one matrix product written in its place; the
gradient of a bias is the sum of its rows (cf. :mod:`hasten.ops.grouped_linear`, without bias).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import autocast_dtype


def typed_linear(x: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> Tensor:
    """[B, K]. x: [B, D], the rows of type 0 first; weight: [T, D, K]; bias: [T, K]; sizes: [T].

    Autocast chooses the precision of the products, and that of the result.
    """
    dtype = autocast_dtype(x)
    out: Tensor = _TypedLinear.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, tuple(sizes), dtype
    )
    return out


def typed_linear_reference(x: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> Tensor:
    """The same with a matrix for every row."""
    kind = torch.repeat_interleave(torch.tensor(list(sizes), device=x.device))
    return torch.einsum("bd,bdk->bk", x, weight[kind]) + bias[kind]


class _TypedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
    ) -> Tensor:
        low = x.to(dtype)
        out = low.new_empty(len(x), weight.shape[2])
        for kind, start, stop in _spans(sizes):
            matrix, shift = weight[kind].to(dtype), bias[kind].to(dtype)
            torch.addmm(shift, low[start:stop], matrix, out=out[start:stop])
        ctx.save_for_backward(low, weight)
        ctx.sizes, ctx.dtype, ctx.kind = sizes, dtype, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        low, weight = ctx.saved_tensors
        grad = grad.to(ctx.dtype).contiguous()
        grad_x = torch.empty_like(low) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight)
        grad_bias = weight.new_zeros(weight.shape[0], weight.shape[2])
        for kind, start, stop in _spans(ctx.sizes):
            part = grad[start:stop]
            if grad_x is not None:
                torch.mm(part, weight[kind].to(ctx.dtype).T, out=grad_x[start:stop])
            grad_weight[kind] = (low[start:stop].T @ part).to(weight.dtype)
            grad_bias[kind] = part.sum(0, dtype=weight.dtype)
        found = None if grad_x is None else grad_x.to(ctx.kind)
        return found, grad_weight, grad_bias, None, None


def _spans(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(type, start, stop) of the types that have rows."""
    spans, start = [], 0
    for kind, size in enumerate(sizes):
        if size:
            spans.append((kind, start, start + size))
        start += size
    return spans

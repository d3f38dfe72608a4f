"""Rows through the linear map of their group: ``out[i] = x[i] @ weights[g] + bias[g]``.

Rows of a group stand together, so a group is one matrix product, written in its place, and no
matrix is copied for every row (B x D x K numbers where gathered). A group without rows costs
nothing; the gradient of a bias is the sum of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hasten.ops.dense.product import product, product_into
from hasten.ops.dtypes import autocast_dtype


def grouped_linear(
    x: Tensor, weights: Tensor, sizes: Sequence[int], bias: Tensor | None = None
) -> Tensor:
    """[B, K] rows times the matrix of their group.

    x: [B, D], the rows of group 0 first, then those of group 1, ...; weights: [G, D, K]; sizes:
    rows of each group [G]; bias: [G, K]. Autocast chooses the precision of the products, and that
    of the result.
    """
    dtype = autocast_dtype(x)
    out: Tensor = _GroupedLinear.apply(  # type: ignore[no-untyped-call]
        x, weights, bias, tuple(sizes), dtype
    )
    return out


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
    ) -> Tensor:
        low = x.to(dtype)
        out = low.new_empty(len(x), weights.shape[2])
        for group, start, stop in _spans(sizes):
            rows, matrix = low[start:stop], weights[group].to(dtype)
            own = None if bias is None else bias[group].to(dtype)
            product_into(out[start:stop], rows, matrix, own)
        ctx.save_for_backward(low, weights)
        ctx.sizes, ctx.dtype, ctx.kind = sizes, dtype, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        low, weights = ctx.saved_tensors
        grad = grad.to(ctx.dtype).contiguous()
        grad_x = torch.empty_like(low) if ctx.needs_input_grad[0] else None
        grad_weights = torch.zeros_like(weights)
        grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = weights.new_zeros(weights.shape[0], weights.shape[2])
        for group, start, stop in _spans(ctx.sizes):
            part = grad[start:stop]
            if grad_x is not None:
                product_into(grad_x[start:stop], part, weights[group].to(ctx.dtype).T)
            grad_weights[group] = product(low[start:stop].T, part).to(weights.dtype)
            if grad_bias is not None:
                grad_bias[group] = part.sum(0, dtype=weights.dtype)
        found = None if grad_x is None else grad_x.to(ctx.kind)
        return found, grad_weights, grad_bias, None, None


def _spans(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(group, start, stop) of the groups that have rows."""
    spans, start = [], 0
    for group, size in enumerate(sizes):
        if size:
            spans.append((group, start, start + size))
        start += size
    return spans

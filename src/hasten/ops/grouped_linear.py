"""Rows through one matrix a group: ``out[i] = x[i] @ weights[group of i]``, groups in a row.

Rows of a group stand together, so a group is one matrix product and no matrix is copied for every
row (B x D x K numbers where gathered). A group without rows costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import autocast_dtype


def grouped_linear(x: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
    """[B, K] rows times the matrix of their group.

    x: [B, D], the rows of group 0 first, then those of group 1, ...; weights: [G, D, K]; sizes:
    rows of each group [G]. Autocast chooses the precision of the products.
    """
    dtype = autocast_dtype(x)
    out: Tensor = _GroupedLinear.apply(x, weights, sizes, dtype)  # type: ignore[no-untyped-call]
    return out


def grouped_linear_reference(x: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
    """The same with a matrix for every row."""
    group = torch.repeat_interleave(torch.tensor(sizes, device=x.device))
    return torch.einsum("bd,bdk->bk", x, weights[group])


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, sizes: list[int], dtype: torch.dtype
    ) -> Tensor:
        low = x.to(dtype)
        out = low.new_empty(len(x), weights.shape[2])
        for group, start, stop in _spans(sizes):
            torch.mm(low[start:stop], weights[group].to(dtype), out=out[start:stop])
        ctx.save_for_backward(low, weights)
        ctx.sizes, ctx.dtype, ctx.kind = sizes, dtype, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        low, weights = ctx.saved_tensors
        grad = grad.to(ctx.dtype).contiguous()
        grad_x = torch.empty_like(low)
        grad_weights = torch.zeros_like(weights)
        for group, start, stop in _spans(ctx.sizes):
            part = grad[start:stop]
            torch.mm(part, weights[group].to(ctx.dtype).T, out=grad_x[start:stop])
            product = low[start:stop].T @ part
            grad_weights[group] = product.to(weights.dtype)
        return grad_x.to(ctx.kind), grad_weights, None, None


def _spans(sizes: list[int]) -> list[tuple[int, int, int]]:
    """(group, start, stop) of the groups that have rows."""
    spans, start = [], 0
    for group, size in enumerate(sizes):
        if size:
            spans.append((group, start, start + size))
        start += size
    return spans

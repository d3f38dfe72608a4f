"""A linear layer whose products are computed by :func:`hasten.ops.dense.product.product`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hasten.ops.dense.product import (
    outer_by_blocks,
    product,
    product_by_blocks,
    product_plus,
)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, varying: bool = False
) -> Tensor:
    """[N, O]: ``x weightᵀ + bias``, as ``torch.nn.functional.linear``, for large N.

    x: [N, D]; weight: [O, D]; bias: [O]; varying: N is another one in each step. Under autocast it
    calls torch's function.
    """
    if torch.is_autocast_enabled(x.device.type) or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias, varying)  # type: ignore[no-untyped-call]
    return out


class LinearMap(nn.Linear):
    """``torch.nn.Linear`` with :func:`linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, varying: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.varying = varying
        if varying:
            out = product_by_blocks(x, weight.T)
            return out if bias is None else out.add_(bias)
        if bias is None:
            return product(x, weight.T)
        return product_plus(x, weight.T, bias)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        multiply = product_by_blocks if ctx.varying else product
        grad_weight = None
        if of_weight:
            grad_weight = outer_by_blocks(grad, x) if ctx.varying else product(grad.T, x)
        return (
            multiply(grad, weight) if of_x else None,
            grad_weight,
            grad.sum(0) if of_bias else None,
            None,
        )

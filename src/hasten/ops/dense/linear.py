"""A linear layer whose products are computed by :func:`hasten.ops.dense.product.product`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hasten.ops.dense.product import product, product_plus


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[N, O]: ``x weightᵀ + bias``, as ``torch.nn.functional.linear``, for large and constant N.

    x: [N, D]; weight: [O, D]; bias: [O]. Under autocast it calls torch's function.
    """
    if torch.is_autocast_enabled(x.device.type) or x.device.type != "cpu":
        return F.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


class LinearMap(nn.Linear):
    """``torch.nn.Linear`` with :func:`linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if bias is None:
            return product(x, weight.T)
        return product_plus(x, weight.T, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            product(grad, weight) if of_x else None,
            product(grad.T, x) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )

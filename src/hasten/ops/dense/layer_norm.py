"""Layer norm whose backward pass keeps the input in the precision of matrix products.

Under autocast the input of a layer norm is the float32 sum of a residual connection, which nothing
else keeps. The norm and its gradient are computed in float32, the gradient from the rounded input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.ops.dtypes import autocast_dtype


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """``torch.nn.functional.layer_norm`` over the last dimension, in the dtype of x."""
    kind = autocast_dtype(x)
    if kind == x.dtype or torch.compiler.is_compiling():
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    out: Tensor = _LayerNorm.apply(x, weight, bias, eps, kind)  # type: ignore[no-untyped-call]
    return out


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm`` with :func:`layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.weight, self.bias, self.eps)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, kind: torch.dtype
    ) -> Tensor:
        out, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(x.to(kind), weight, bias, mean, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        grads = torch.ops.aten.native_layer_norm_backward(
            grad, x.to(grad.dtype), x.shape[-1:], mean, rstd, weight, bias, [True, True, True]
        )
        return *grads, None, None

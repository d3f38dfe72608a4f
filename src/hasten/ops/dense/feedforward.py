"""The point-wise feed-forward network with its two dropouts.

``y = dropout(W2 dropout(relu(W1 x + b1)) + b2)`` (Kang & McAuley 2018, equation 4).

On a CPU one function computes it, in place where values are not needed again: relu and dropout
leave zeros in the same places of the hidden layer, so its backward pass needs no mask beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dense.dropout import dropout, keep_mask, kept_scale
from hasten.ops.dtypes import autocast_dtype


def feedforward(
    x: Tensor,
    inner: tuple[Tensor, Tensor],
    outer: tuple[Tensor, Tensor],
    drop: float,
    training: bool,
) -> Tensor:
    """[T, D] of tokens x [T, D].

    inner: weight [I, D] and bias [I]; outer: weight [D, I] and bias [D]; drop: probability of both
    dropouts.
    """
    if x.device.type == "cpu" and training and drop > 0.0:
        out: Tensor = _Feedforward.apply(x, *inner, *outer, drop)  # type: ignore[no-untyped-call]
        return out
    return feedforward_reference(x, inner, outer, drop, training)


def feedforward_reference(
    x: Tensor,
    inner: tuple[Tensor, Tensor],
    outer: tuple[Tensor, Tensor],
    drop: float,
    training: bool,
) -> Tensor:
    """The equation, an operation at a time."""
    hidden = dropout(torch.relu(F.linear(x, *inner)), drop, training)
    return dropout(F.linear(hidden, *outer), drop, training)


class _Feedforward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        inner: Tensor,
        inner_bias: Tensor,
        outer: Tensor,
        outer_bias: Tensor,
        drop: float,
    ) -> Tensor:
        dtype = autocast_dtype(x)
        ctx.dtypes = [t.dtype for t in (x, inner, inner_bias, outer, outer_bias)]
        ctx.scale = kept_scale(drop)
        low, into, out_of = x.to(dtype), inner.to(dtype), outer.to(dtype)
        with torch.autocast("cpu", enabled=False):
            hidden = torch.addmm(inner_bias.to(dtype), low, into.T).relu_()
            hidden.mul_(keep_mask(hidden.shape, drop))
            result = torch.addmm(outer_bias.to(dtype), hidden, out_of.T)
            mask = keep_mask(result.shape, drop).to(dtype)
        ctx.save_for_backward(low, into, out_of, hidden, mask)
        return result.mul_(mask)

    @staticmethod
    def backward(ctx: Any, grad_result: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, outer, hidden, mask = ctx.saved_tensors
        grad = grad_result * mask
        # hidden is zero where relu or dropout was, and only there; the scale goes with the weight
        grad_hidden = torch.ops.aten.threshold_backward(grad @ (outer * ctx.scale), hidden, 0)
        grads = (
            grad_hidden @ inner,
            grad_hidden.T @ x,
            grad_hidden.sum(0),
            grad.T @ hidden,
            grad.sum(0),
        )
        return *(g.to(dtype) for g, dtype in zip(grads, ctx.dtypes, strict=True)), None

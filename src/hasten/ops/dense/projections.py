"""Query, key and value of attention from one input, each a tensor of its own.

``q = x Wqᵀ + b``, ``k = x Wkᵀ``, ``v = x Wvᵀ`` (Vaswani et al. 2017, section 3.2.2). Keys have no
bias: it adds the same to every score of a query, so its gradient is zero.

One product with a stacked weight would leave the three interleaved in memory; attention then works
on strided views and its backward pass copies every gradient into place, which on a CPU costs more
than the two further products. The input's gradient is added up in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dtypes import autocast_dtype


def query_key_value(x: Tensor, weight: Tensor, query_bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value [T, D] of tokens x [T, D]; weight: [3·D, D], theirs one below the other.

    On a CPU each is contiguous; elsewhere they are views of one [T, 3·D] product.
    """
    width = x.shape[1]
    if x.device.type == "cpu":
        q, k, v = _Projections.apply(x, weight, query_bias)  # type: ignore[no-untyped-call]
    else:
        packed = F.linear(x, weight, F.pad(query_bias, (0, 2 * width)))
        q, k, v = torch.split(packed, width, dim=1)
    return q, k, v


def query_key_value_reference(
    x: Tensor, weight: Tensor, query_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The equations, one product each."""
    query, key, value = weight.view(3, -1, x.shape[1])
    return F.linear(x, query, query_bias), F.linear(x, key), F.linear(x, value)


class _Projections(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, query_bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = autocast_dtype(x)
        ctx.dtypes = x.dtype, weight.dtype, query_bias.dtype
        low, all_weights = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(low, all_weights)
        with torch.autocast("cpu", enabled=False):
            query, key, value = all_weights.view(3, -1, x.shape[1])
            projected = torch.addmm(query_bias.to(dtype), low, query.T)
            return projected, low @ key.T, low @ value.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        grad_query, grad_key, grad_value = grads
        x, weight = ctx.saved_tensors
        query, key, value = weight.view(3, -1, x.shape[1])
        grad_x = grad_query @ query
        grad_x.addmm_(grad_key, key).addmm_(grad_value, value)
        grad_weight = torch.empty_like(weight)
        parts = zip(
            grad_weight.view(3, -1, x.shape[1]), (grad_query, grad_key, grad_value), strict=True
        )
        for part, grad in parts:
            torch.mm(grad.T, x, out=part)
        kinds = ctx.dtypes
        return grad_x.to(kinds[0]), grad_weight.to(kinds[1]), grad_query.sum(0).to(kinds[2])

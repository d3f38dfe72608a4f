"""A linear layer with a weight for each group of adjacent rows, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hasten.ops.dense.product import product_into, product_plus

#: rows per product: oneDNN prepares code for every new shape, and few rows stay in the cache
_BLOCK = 2048


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> Tensor:
    """[N, K] of x [N, D], sorted by group; weight: [G, D, K]; bias: [G, K]; sizes: rows of each."""
    if torch.is_autocast_enabled(x.device.type) or x.device.type != "cpu":
        maps = zip(torch.split(x, list(sizes)), weight, bias, strict=True)
        return torch.cat([F.linear(part, each.T, shift) for part, each, shift in maps])
    out: Tensor = _GroupedLinear.apply(x, weight, bias, sizes)  # type: ignore[no-untyped-call]
    return out


def _blocks(sizes: Sequence[int]) -> Iterator[tuple[int, slice, bool]]:
    """The group and the rows of every block, and whether it is whole."""
    for group, (stop, size) in enumerate(zip(accumulate(sizes), sizes, strict=True)):
        for start in range(stop - size, stop, _BLOCK):
            yield group, slice(start, min(start + _BLOCK, stop)), start + _BLOCK <= stop


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        out = x.new_empty(len(x), weight.shape[2])
        for group, rows, whole in _blocks(sizes):
            if whole:
                out[rows] = product_plus(x[rows], weight[group], bias[group])
            else:
                torch.addmm(bias[group], x[rows], weight[group], out=out[rows])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch.empty_like(x)
            for group, rows, whole in _blocks(ctx.sizes):
                multiply = product_into if whole else _mm_into
                multiply(of_x[rows], grad[rows], weight[group].T)
        sizes = list(ctx.sizes)
        parts = list(zip(torch.split(x, sizes), torch.split(grad, sizes), strict=True))
        of_weight = torch.empty_like(weight)
        for into, (part, upper) in zip(of_weight, parts, strict=True):
            torch.mm(part.T, upper, out=into)
        return of_x, of_weight, torch.stack([upper.sum(0) for _, upper in parts]), None


def _mm_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    torch.mm(a, b, out=out)

"""A linear layer with a weight for each group of adjacent rows, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.ops.dense.product import (
    block_rows,
    outer_by_blocks,
    padded_rows,
    product_into,
    product_plus,
)
from hasten.ops.dtypes import autocast_dtype


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> Tensor:
    """[N, K] of x [N, D], sorted by group; weight: [G, D, K]; bias: [G, K]; sizes: rows of each."""
    operands = (each.to(autocast_dtype(x)) for each in (x, weight, bias))
    out: Tensor = _GroupedLinear.apply(*operands, sizes)  # type: ignore[no-untyped-call]
    return out


def _blocks(x: Tensor, weight: Tensor, sizes: Sequence[int]) -> Iterator[tuple[int, slice, bool]]:
    """The group and the rows of every block, and whether it is whole; on a GPU all of a group."""
    step = block_rows(*weight.shape[1:]) if x.device.type == "cpu" else len(x) + 1
    for group, (stop, size) in enumerate(zip(accumulate(sizes), sizes, strict=True)):
        for start in range(stop - size, stop, step):
            yield group, slice(start, min(start + step, stop)), start + step <= stop


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        out = x.new_empty(len(x), weight.shape[2])
        for group, rows, whole in _blocks(x, weight, sizes):
            part = padded_rows(x[rows])
            if whole or len(part) > rows.stop - rows.start:
                result = product_plus(part, weight[group], bias[group])
                out[rows] = result[: rows.stop - rows.start]
            else:
                torch.addmm(bias[group], part, weight[group], out=out[rows])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch.empty_like(x)
            for group, rows, whole in _blocks(x, weight, ctx.sizes):
                upper = padded_rows(grad[rows])
                if len(upper) > rows.stop - rows.start:
                    of_x[rows] = torch.mm(upper, weight[group].T)[: rows.stop - rows.start]
                else:
                    multiply = product_into if whole else _mm_into
                    multiply(of_x[rows], upper, weight[group].T)
        sizes = list(ctx.sizes)
        parts = list(zip(torch.split(x, sizes), torch.split(grad, sizes), strict=True))
        of_weight, of_bias = torch.empty_like(weight), weight.new_empty(len(weight), grad.shape[1])
        for group, (part, upper) in enumerate(parts):
            outer_by_blocks(padded_rows(part), padded_rows(upper), out=of_weight[group])
            torch.sum(upper, 0, out=of_bias[group])
        return of_x, of_weight, of_bias, None


def _mm_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    torch.mm(a, b, out=out)

"""A table plus its sums of neighbours, plus theirs, ..., over all nodes.

``out = x + A x + A² x + ... + A^K x = x + A (x + A (x + ...))`` over a fixed graph. The gradient of
x is the same with A', so that nothing between the layers is kept and each direction holds one
table besides its result.

Shapes: N rows and columns, D width, K layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.spmm import EdgeWeights, SparseGraph, product


def layer_sum(graph: SparseGraph, weights: EdgeWeights, x: Tensor, layers: int) -> Tensor:
    """[N, D]; x: [N, D]; layers: K. Neighbours are summed in bf16 where autocast says so."""
    found: Tensor = _LayerSum.apply(  # type: ignore[no-untyped-call]
        graph, weights, layers, autocast_dtype(x), x
    )
    return found


class _LayerSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        graph: SparseGraph,
        weights: EdgeWeights,
        layers: int,
        dtype: torch.dtype,
        x: Tensor,
    ) -> Tensor:
        ctx.graph, ctx.weights, ctx.layers, ctx.dtype = graph, weights, layers, dtype
        return _horner(graph.offsets, graph.columns, weights.values.to(dtype), x, layers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        graph: SparseGraph = ctx.graph
        values = ctx.weights.transposed.to(ctx.dtype)
        grad = grad.contiguous()
        found = _horner(graph.offsets_t, graph.columns_t, values, grad, ctx.layers)
        return None, None, None, None, found


def _horner(offsets: Tensor, columns: Tensor, values: Tensor, x: Tensor, layers: int) -> Tensor:
    total = x
    for _ in range(layers):
        summed = product(offsets, columns, values, total.to(values.dtype))
        total = summed.add_(x) if summed.dtype == x.dtype else summed + x
    return total if layers else x.clone()

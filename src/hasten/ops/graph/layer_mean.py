"""The mean of a table and its sums of neighbours, of their sums, ..., at some of its rows.

``out = (x + A x + A² x + ... + A^K x)[rows] / (K + 1)`` over a fixed graph. Only K - 1 sums are
over the whole graph: the last one is taken at the rows alone. With G the gradient at the rows, that
of x is ``(G + A' (G + A' (...))) / (K + 1)``, so that nothing between the layers is kept for it:
memory does not grow with K.

Shapes: N rows and columns, S rows that are wanted, D width, K layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.spmm import EdgeWeights, RowEntries, SparseGraph, product


def layer_mean(
    graph: SparseGraph, weights: EdgeWeights, x: Tensor, rows: Tensor, layers: int
) -> tuple[Tensor, Tensor]:
    """[S, D] the given rows of ``x``, and the same rows of the mean over its layers.

    x: [N, D]; rows: int64 [S] on the host, distinct; layers: K, at least 1. Sums are in bf16 where
    autocast says so. Both together, because their gradients are added up in one table.
    """
    found: tuple[Tensor, Tensor] = _LayerMean.apply(  # type: ignore[no-untyped-call]
        RowEntries.of(graph, weights, rows), layers, autocast_dtype(x), x
    )
    return found


class _LayerMean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        entries: RowEntries,
        layers: int,
        dtype: torch.dtype,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        graph, values = entries.graph, entries.weights.values.to(dtype)
        own = x.index_select(0, entries.own)
        total, layer = own.clone(), x.to(dtype)
        for _ in range(layers - 1):
            layer = product(graph.offsets, graph.columns, values, layer)
            total += layer.index_select(0, entries.own)
        total += product(entries.offsets, entries.columns, entries.values.to(dtype), layer)
        ctx.entries, ctx.layers, ctx.dtype, ctx.kind = entries, layers, dtype, x.dtype
        return own, total.div_(layers + 1)

    @staticmethod
    def backward(ctx: Any, grad_own: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        entries: RowEntries = ctx.entries
        graph, rows, dtype = entries.graph, entries.own, ctx.dtype
        grad = (grad / (ctx.layers + 1)).to(ctx.kind)
        found = entries.spread(grad)
        transposed = entries.weights.transposed.to(dtype)
        for _ in range(ctx.layers - 1):
            found.index_add_(0, rows, grad)
            found = product(graph.offsets_t, graph.columns_t, transposed, found.to(dtype))
            found = found.to(ctx.kind)
        found.index_add_(0, rows, grad + grad_own.to(ctx.kind))
        return None, None, None, found

"""The mean of a table and its sums of neighbours, of their sums, ..., at some of its rows.

``out = (x + A x + A² x + ... + A^K x)[rows] / (K + 1)`` over a fixed graph. Only K - 1 sums are
over the whole graph: the last one is taken at the rows alone. With G the gradient at the rows, that
of x is ``(G + A' (G + A' (...))) / (K + 1)``, so that nothing between the layers is kept for it:
memory does not grow with K.

Shapes: N rows and columns, S rows that are wanted, D width, K layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.data.tables import ragged_positions
from hasten.ops.dtypes import autocast_dtype
from hasten.ops.spmm import (
    EdgeWeights,
    SparseGraph,
    many_rows,
    pick,
    product,
    spread_many_rows,
    spread_rows,
)


def layer_mean(
    graph: SparseGraph, weights: EdgeWeights, x: Tensor, rows: Tensor, layers: int
) -> tuple[Tensor, Tensor]:
    """[S, D] the given rows of ``x``, and the same rows of the mean over its layers.

    x: [N, D]; rows: int64 [S] on the host, distinct; layers: K, at least 1. Sums are in bf16 where
    autocast says so. Both together, because their gradients are added up in one table.
    """
    positions, offsets = ragged_positions(graph.bounds, rows.numpy())
    place = torch.from_numpy(positions).to(x.device)
    chosen = torch.from_numpy(offsets.astype(np.int32)).to(x.device)
    columns, values = pick(graph.columns, place), pick(weights.values, place)
    found: tuple[Tensor, Tensor] = _LayerMean.apply(  # type: ignore[no-untyped-call]
        graph, weights, layers, autocast_dtype(x), rows.to(x.device), chosen, columns, values, x
    )
    return found


def layer_mean_reference(
    graph: SparseGraph, weights: EdgeWeights, x: Tensor, rows: Tensor, layers: int
) -> tuple[Tensor, Tensor]:
    """The same with a dense matrix."""
    dense = x.new_zeros(graph.shape)
    index = (graph.rows, graph.columns.long())
    dense.index_put_(index, weights.values.to(x.dtype), accumulate=True)
    found = [x]
    for _ in range(layers):
        found.append(dense @ found[-1])
    return x[rows], torch.stack(found).mean(0)[rows]


class _LayerMean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        graph: SparseGraph,
        weights: EdgeWeights,
        layers: int,
        dtype: torch.dtype,
        rows: Tensor,
        offsets: Tensor,
        columns: Tensor,
        values: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        own = x.index_select(0, rows)
        total, layer = own.clone(), x.to(dtype)
        for _ in range(layers - 1):
            layer = product(graph.offsets, graph.columns, weights.values.to(dtype), layer)
            total += layer.index_select(0, rows)
        total += product(offsets, columns, values.to(dtype), layer)
        ctx.graph, ctx.weights, ctx.layers, ctx.dtype = graph, weights, layers, dtype
        ctx.kind, ctx.count = x.dtype, len(x)
        ctx.save_for_backward(rows, offsets, columns, values)
        return own, total.div_(layers + 1)

    @staticmethod
    def backward(ctx: Any, grad_own: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, offsets, columns, values = ctx.saved_tensors
        graph, dtype = ctx.graph, ctx.dtype
        grad = (grad / (ctx.layers + 1)).to(ctx.kind)
        if many_rows(graph, columns):
            found = spread_many_rows(graph, ctx.weights, rows, grad)
        else:
            found = spread_rows(grad, offsets, columns, values, ctx.count)
        transposed = ctx.weights.transposed.to(dtype)
        for _ in range(ctx.layers - 1):
            found.index_add_(0, rows, grad)
            found = product(graph.offsets_t, graph.columns_t, transposed, found.to(dtype))
            found = found.to(ctx.kind)
        found.index_add_(0, rows, grad + grad_own.to(ctx.kind))
        return None, None, None, None, None, None, None, None, found

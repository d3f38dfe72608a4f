"""A layer of a graph network over a fixed graph, in one function: sum neighbours, mix, drop out.

``n = A x``; a node's own row o and the sum n of its neighbours go through one matrix or two:

- ``bi-interaction``: ``lrelu((o + n) W1' + b1) + lrelu((o ⊙ n) W2' + b2)``;
- ``gcn``: ``lrelu((o + n) W1' + b1)``;  ``graphsage``: ``lrelu([o, n] W1' + b1)``.

Everything after the sum goes some thousand rows at a time on the CPU, so that what lies between
reading x and writing the result stays in the cache; forward keeps the signs and the dropout mask
as one byte an element, and backward computes the mixtures again. As autograd would write it, such a
layer passes through memory some twenty times more.

The rows that the loss looks at are picked here too, so that their gradient is added to the rest in
place instead of being a table of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dropout import dropout, keep_mask, kept_scale
from hasten.ops.dtypes import autocast_dtype, wide
from hasten.ops.spmm import EdgeWeights, SparseGraph, product

Aggregator = Literal["bi-interaction", "gcn", "graphsage"]
#: what enters the matrices of each aggregator
_INPUTS: dict[Aggregator, tuple[str, ...]] = {
    "bi-interaction": ("sum", "product"),
    "gcn": ("sum",),
    "graphsage": ("both",),
}
#: rows at a time: a few buffers of them fit the second-level cache
_ROWS_CPU = 2048


def aggregate(
    graph: SparseGraph,
    weights: EdgeWeights,
    x: Tensor,
    picked: Tensor,
    matrices: Sequence[tuple[Tensor, Tensor]],
    aggregator: Aggregator,
    slope: float,
    probability: float,
) -> tuple[Tensor, Tensor]:
    """[S, D] rows of x, and [N, K] the layer of all rows; in bf16 where autocast says so.

    x: [N, D]; picked: int64 [S], distinct; matrices: weight [K, D or 2D] and bias [K] of each;
    slope: of the leaky ReLU; probability: of dropout.
    """
    flat = [tensor for pair in matrices for tensor in pair]
    found: tuple[Tensor, Tensor] = _Aggregate.apply(  # type: ignore[no-untyped-call]
        graph, weights, aggregator, slope, probability, autocast_dtype(x), x, picked, *flat
    )
    return found


def mix(
    own: Tensor,
    neighbours: Tensor,
    matrices: Sequence[tuple[Tensor, Tensor]],
    aggregator: Aggregator,
    slope: float,
    probability: float,
) -> Tensor:
    """[S, K] the same of given rows and the sums of their neighbours, as it reads."""
    parts = [
        F.leaky_relu(F.linear(_input(kind, own, neighbours), weight, bias), slope)
        for kind, (weight, bias) in zip(_INPUTS[aggregator], matrices, strict=True)
    ]
    return dropout(torch.stack(parts).sum(0), probability, training=True)


def _input(kind: str, own: Tensor, neighbours: Tensor) -> Tensor:
    if kind == "sum":
        return own + neighbours
    return own * neighbours if kind == "product" else torch.cat([own, neighbours], 1)


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        graph: SparseGraph,
        weights: EdgeWeights,
        aggregator: Aggregator,
        slope: float,
        probability: float,
        dtype: torch.dtype,
        x: Tensor,
        picked: Tensor,
        *matrices: Tensor,
    ) -> tuple[Tensor, Tensor]:
        low = x.to(dtype)
        sums = product(graph.offsets, graph.columns, weights.values.to(dtype), low)
        kinds, width = _INPUTS[aggregator], len(matrices[0])
        out = low.new_empty(len(x), width)
        signs = [torch.empty_like(out, dtype=torch.bool) for _ in kinds]
        keep = torch.empty_like(out, dtype=torch.bool) if probability else None
        low_matrices = [matrix.to(dtype) for matrix in matrices]
        scale = 1.0
        for part in _chunks(x):
            own, neighbours, total = low[part], sums[part], out[part]
            for number, kind in enumerate(kinds):
                weight, bias = low_matrices[2 * number : 2 * number + 2]
                entered = _input(kind, own, neighbours)
                y = torch.addmm(bias, entered, weight.T, out=None if number else total)
                torch.gt(y, 0, out=signs[number][part])
                F.leaky_relu_(y, slope)
                if number:
                    total += y
            if keep is not None:
                mask, scale = _mask(total, probability)
                torch.gt(mask, 0, out=keep[part])
                total *= mask
        ctx.save_for_backward(low, sums, picked, keep, *signs, *matrices)
        ctx.graph, ctx.weights, ctx.kinds = graph, weights, kinds
        ctx.slope, ctx.scale, ctx.dtype, ctx.kind = slope, scale, dtype, x.dtype
        return x.index_select(0, picked), out

    @staticmethod
    def backward(ctx: Any, grad_picked: Tensor, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        low, sums, picked, keep, *rest = ctx.saved_tensors
        kinds, slope, graph = ctx.kinds, ctx.slope, ctx.graph
        signs, matrices = rest[: len(kinds)], rest[len(kinds) :]
        low_matrices = [matrix.to(ctx.dtype) for matrix in matrices]
        grads = [torch.zeros(m.shape, dtype=wide(low), device=low.device) for m in matrices]
        grad_own, grad_sums = torch.empty_like(low, dtype=ctx.kind), torch.empty_like(low)
        for part in _chunks(low):
            own, neighbours, grad = low[part], sums[part], grad_out[part].to(ctx.dtype)
            if keep is not None:
                grad = grad * keep[part]
                grad *= ctx.scale
            to_own, to_sums = grad_own[part], grad_sums[part]
            for number, kind in enumerate(kinds):
                g = torch.where(signs[number][part], grad, grad * slope)
                grads[2 * number] += g.T @ _input(kind, own, neighbours)
                grads[2 * number + 1] += g.sum(0, dtype=wide(g))
                d = g @ low_matrices[2 * number]
                if kind == "sum":
                    to_own.copy_(d)
                    to_sums.copy_(d)
                elif kind == "product":
                    to_own.addcmul_(d, neighbours)
                    to_sums.addcmul_(d, own)
                else:
                    to_own.copy_(d[:, : own.shape[1]])
                    to_sums.copy_(d[:, own.shape[1] :])
        transposed = ctx.weights.transposed.to(ctx.dtype)
        grad_own += product(graph.offsets_t, graph.columns_t, transposed, grad_sums)
        grad_own.index_add_(0, picked, grad_picked.to(ctx.kind))
        found = (g.to(m.dtype) for g, m in zip(grads, matrices, strict=True))
        return None, None, None, None, None, None, grad_own, None, *found


def _chunks(x: Tensor) -> list[slice]:
    step = _ROWS_CPU if x.device.type == "cpu" else max(1, len(x))
    return [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]


def _mask(like: Tensor, probability: float) -> tuple[Tensor, float]:
    """The mask of :func:`hasten.ops.dropout.dropout`, and what a kept element is scaled by."""
    if like.device.type == "cpu":
        return keep_mask(like.shape, probability).to(like.dtype), kept_scale(probability)
    return F.dropout(torch.ones_like(like), probability), 1 / (1 - probability)

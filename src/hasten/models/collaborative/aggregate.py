"""A layer of a graph network over a fixed graph in one function: aggregate, transform, dropout.

``n = A x``; a node's own row o and the sum n of its neighbors go through one or two matrices:

- ``bi-interaction``: ``lrelu((o + n) W1' + b1) + lrelu((o ⊙ n) W2' + b2)``;
- ``gcn``: ``lrelu((o + n) W1' + b1)``;  ``graphsage``: ``lrelu([o, n] W1' + b1)``.

On a CPU, everything after the sum is computed for about two thousand rows at a time, so that
intermediate results stay in the cache. Forward keeps the outputs of the leaky ReLUs and the dropout
mask as one bit per element; backward recomputes their inputs. With autograd, such a layer would
pass through memory about twenty times more often.

If later layers need only some rows (a batch and its neighbors), only these are transformed, and the
backward sum reads a table of these rows, with the same result. The function also selects the rows
that the loss needs, so that their gradient is added in place and not as a table of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dense.dropout import dropout, keep_bytes, mask_of
from hasten.ops.dense.product import padded_rows
from hasten.ops.dtypes import accumulation_dtype, autocast_dtype
from hasten.ops.graph.graph_shard import GraphShard
from hasten.ops.graph.spmm import EdgeWeights, SparseGraph, product
from hasten.ops.graph.spmm_rows import places

Aggregator = Literal["bi-interaction", "gcn", "graphsage"]
#: inputs of the matrices of each aggregator
_INPUTS: dict[Aggregator, tuple[str, ...]] = {
    "bi-interaction": ("sum", "product"),
    "gcn": ("sum",),
    "graphsage": ("both",),
}
#: rows at a time, so that a few buffers fit into the L2 cache
_ROWS_CPU = 2048


def aggregate(
    graph: SparseGraph | GraphShard,
    weights: EdgeWeights | None,
    x: Tensor,
    picked: Tensor,
    matrices: Sequence[tuple[Tensor, Tensor]],
    aggregator: Aggregator,
    slope: float,
    probability: float,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """[S, D] rows of x, and [R, K] the layer of the given rows; in bf16 under autocast.

    x: [N, D]; picked: int64 [S], distinct; matrices: weight [K, D or 2D] and bias [K] of each;
    slope: of the leaky ReLU; probability: of dropout; rows: int64 [R], distinct; None: all. With a
    part of a graph, which has its weights, N are the nodes of this process; it is a collective.
    """
    flat = [tensor for pair in matrices for tensor in pair]
    outputs: tuple[Tensor, Tensor] = _Aggregate.apply(  # type: ignore[no-untyped-call]
        graph, weights, aggregator, slope, probability, autocast_dtype(x), x, picked, rows, *flat
    )
    return outputs


def mix(
    node_rows: Tensor,
    neighbors: Tensor,
    matrices: Sequence[tuple[Tensor, Tensor]],
    aggregator: Aggregator,
    slope: float,
    probability: float,
) -> Tensor:
    """[S, K] the same from rows and the sums of their neighbors, with PyTorch's operations."""
    parts = [
        F.leaky_relu(_linear(_input(kind, node_rows, neighbors), weight, bias), slope)
        for kind, (weight, bias) in zip(_INPUTS[aggregator], matrices, strict=True)
    ]
    return dropout(reduce(torch.add, parts), probability, training=True)


def _input(kind: str, node_rows: Tensor, neighbors: Tensor) -> Tensor:
    if kind == "sum":
        return node_rows + neighbors
    return node_rows * neighbors if kind == "product" else torch.cat([node_rows, neighbors], 1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    padded = padded_rows(x)
    out = F.linear(padded, weight, bias)
    return out if padded is x else out[: len(x)]


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        graph: SparseGraph | GraphShard,
        weights: EdgeWeights | None,
        aggregator: Aggregator,
        slope: float,
        probability: float,
        dtype: torch.dtype,
        x: Tensor,
        picked: Tensor,
        rows: Tensor | None,
        *matrices: Tensor,
    ) -> tuple[Tensor, Tensor]:
        low = x.to(dtype)
        sums = _neighbor_sums(graph, weights, low)
        if rows is not None:
            low, sums = low.index_select(0, rows), sums.index_select(0, rows)
        kinds, width = _INPUTS[aggregator], len(matrices[0])
        low_matrices = [matrix.to(dtype) for matrix in matrices]
        # outputs of the leaky ReLUs; a single one without dropout is the result itself
        parts = [low.new_empty(len(low), width) for _ in kinds]
        out = torch.empty_like(parts[0]) if len(kinds) > 1 or probability else parts[0]
        masks = []
        for part in _chunks(low):
            node_rows, neighbors, total = low[part], sums[part], out[part]
            for number, kind in enumerate(kinds):
                weight, bias = low_matrices[2 * number : 2 * number + 2]
                y = parts[number][part]
                entering = padded_rows(_input(kind, node_rows, neighbors))
                if len(entering) == len(y):
                    torch.addmm(bias, entering, weight.T, out=y)
                else:
                    y.copy_(torch.addmm(bias, entering, weight.T)[: len(y)])
                F.leaky_relu_(y, slope)
            if len(kinds) > 1:
                torch.add(parts[0][part], parts[1][part], out=total)
            elif probability:
                total.copy_(parts[0][part])
            if probability:
                mask_bytes = keep_bytes(total.numel(), probability, total.device)
                total *= mask_of(mask_bytes, total.shape, probability, dtype)
                masks.append(mask_bytes)
        # x is there anyway: its rows are converted again
        ctx.save_for_backward(x, sums, picked, rows, *parts, *masks, *matrices)
        ctx.graph, ctx.weights, ctx.kinds, ctx.masks = graph, weights, kinds, len(masks)
        ctx.slope, ctx.probability, ctx.dtype, ctx.kind = slope, probability, dtype, x.dtype
        return x.index_select(0, picked), out

    @staticmethod
    def backward(ctx: Any, grad_picked: Tensor, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, sums, picked, rows, *saved = ctx.saved_tensors
        kinds, slope, graph = ctx.kinds, ctx.slope, ctx.graph
        parts, saved = saved[: len(kinds)], saved[len(kinds) :]
        masks, matrices = saved[: ctx.masks], saved[ctx.masks :]
        low_matrices = [matrix.to(ctx.dtype) for matrix in matrices]
        of_chunks: list[list[Tensor]] = []
        grad_own, full = torch.empty_like(sums), accumulation_dtype(sums)
        # the last row is zero, for nodes whose layer is not needed
        below = 0 if rows is None else 1
        grad_sums = sums.new_empty(len(sums) + below, sums.shape[1])
        grad_sums[len(sums) :] = 0
        for chunk, part in enumerate(_chunks(sums)):
            node_rows = (x[part] if rows is None else x.index_select(0, rows[part])).to(ctx.dtype)
            neighbors, grad = sums[part], grad_out[part].to(ctx.dtype)
            if masks:
                grad = grad * mask_of(masks[chunk], grad.shape, ctx.probability, ctx.dtype)
            chunk_grads: list[Tensor] = []
            of_chunks.append(chunk_grads)
            to_own, to_sums = grad_own[part], grad_sums[: len(sums)][part]
            for number, kind in enumerate(kinds):
                # the output has the sign of the input
                g = torch.ops.aten.leaky_relu_backward(grad, parts[number][part], slope, True)
                g = padded_rows(g)
                product_of = g.T @ padded_rows(_input(kind, node_rows, neighbors))
                chunk_grads += [product_of.to(full), g.sum(0, dtype=full)]
                if kind == "sum":
                    if len(g) == len(node_rows):
                        torch.mm(g, low_matrices[2 * number], out=to_own)
                    else:
                        to_own.copy_((g @ low_matrices[2 * number])[: len(node_rows)])
                    if len(kinds) == 1:
                        to_sums.copy_(to_own)
                elif kind == "product":
                    d = (g @ low_matrices[2 * number])[: len(node_rows)]
                    torch.addcmul(to_own, d, node_rows, out=to_sums)
                    to_own.addcmul_(d, neighbors)
                else:
                    d = (g @ low_matrices[2 * number])[: len(node_rows)]
                    to_own.copy_(d[:, : node_rows.shape[1]])
                    to_sums.copy_(d[:, node_rows.shape[1] :])
        grad_x = _transposed_sums(graph, ctx.weights, grad_sums, rows).to(ctx.kind)
        if rows is None:
            grad_x += grad_own
        else:
            grad_x.index_add_(0, rows, grad_own.to(ctx.kind))
        grad_x.index_add_(0, picked, grad_picked.to(ctx.kind))
        grads = (reduce(torch.add, parts) for parts in zip(*of_chunks, strict=True))
        grad_matrices = (g.to(m.dtype) for g, m in zip(grads, matrices, strict=True))
        return None, None, None, None, None, None, grad_x, None, None, *grad_matrices


def _neighbor_sums(
    graph: SparseGraph | GraphShard, weights: EdgeWeights | None, x: Tensor
) -> Tensor:
    if isinstance(graph, GraphShard):
        return graph.multiply(x)
    assert weights is not None
    return product(graph.offsets, graph.columns, weights.values.to(x.dtype), x)


def _transposed_sums(
    graph: SparseGraph | GraphShard, weights: EdgeWeights | None, grad: Tensor, rows: Tensor | None
) -> Tensor:
    """grad: [N, D], or of the given rows [R + 1, D] with a last row of zeros."""
    if isinstance(graph, GraphShard):
        return graph.multiply_transposed(grad)
    assert weights is not None
    columns = graph.columns_t
    if rows is not None:
        columns = places(rows, graph.shape[1]).gather(0, columns.long())
    return product(graph.offsets_t, columns, weights.transposed.to(grad.dtype), grad)


def _chunks(x: Tensor) -> list[slice]:
    step = _ROWS_CPU if x.device.type == "cpu" else max(1, len(x))
    return [slice(start, min(start + step, len(x))) for start in range(0, max(1, len(x)), step)]

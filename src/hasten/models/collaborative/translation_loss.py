"""The TransR loss, forward and backward in one function.

``y = e W_r`` for the head h, the tail t and the negative tail o of an edge of relation r;
``a = y_h + r - y_t``, ``b = y_h + r - y_o``. The loss is the sum over edges of
``softplus(a·a - b·b)``, the norms are half the sum of all squares of y and r. Edges are grouped by
relation, so each relation's matrix is used in one product and not copied per edge. Products are in
float32 also under autocast: their shapes differ in every batch, and oneDNN compiles bf16 code for
every shape, which takes longer than these small products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dtypes import autocast_dtype, upcast


def translation_loss(
    rows: Tensor, index: Tensor, relation: Tensor, weights: Tensor, sizes: list[int]
) -> tuple[Tensor, Tensor]:
    """The loss and the norms, scalars in float32 or wider.

    rows: [S, D] of the nodes. index: int64 [3B], the rows of head, tail and negative of each edge.
    relation: [B, K], the vector of each edge. weights: [R, D, K]. sizes: edges of each relation
    [R]. Under autocast, forward keeps rows and products in lower precision.
    """
    found: tuple[Tensor, Tensor] = _TranslationLoss.apply(  # type: ignore[no-untyped-call]
        rows, index, relation, weights, sizes, autocast_dtype(rows)
    )
    return found


class _TranslationLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        index: Tensor,
        relation: Tensor,
        weights: Tensor,
        sizes: list[int],
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        x = rows.index_select(0, index)
        y = x.new_empty(len(x), weights.shape[2])
        kinds, parts = _kinds(sizes)
        columns = zip(
            torch.split(x, parts), _of(weights, kinds), torch.split(y, parts), strict=True
        )
        for part, matrix, out in columns:
            torch.mm(part, matrix, out=out)
        low = x.to(dtype), y.to(dtype)
        y, upcast_relation, near, far = _differences(y, relation)
        margin = near.square().sum(1) - far.square().sum(1)
        ctx.save_for_backward(index, relation, weights, *low, margin)
        norms = (y.square().sum() + upcast_relation.square().sum()) / 2
        ctx.sizes, ctx.count = sizes, len(rows)
        return F.softplus(margin).sum(), norms

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, grad_norms: Tensor) -> tuple[Tensor | None, ...]:
        index, relation, weights, x, y, margin = ctx.saved_tensors
        x = x.to(weights.dtype)
        y, relation, near, far = _differences(y, relation)
        rises = (margin.sigmoid() * (2 * grad_loss))[:, None]
        near, far = near * rises, far * rises
        grad_y = (y * grad_norms).view(len(relation), 3, y.shape[1])
        moved = near - far
        grad_relation = torch.add(moved, relation * grad_norms)
        grad_y[:, 0].add_(moved)
        grad_y[:, 1].sub_(near)
        grad_y[:, 2].add_(far)
        grad = grad_y.view(-1, y.shape[1]).to(x.dtype)
        grad_x, grad_weights = torch.empty_like(x), torch.zeros_like(weights)
        kinds, parts = _kinds(ctx.sizes)
        columns = zip(
            torch.split(grad, parts),
            torch.split(x.T, parts, 1),
            _of(weights.transpose(1, 2), kinds),
            torch.split(grad_x, parts),
            _of(grad_weights, kinds),
            strict=True,
        )
        for part, own, matrix, to_x, to_weights in columns:
            torch.mm(part, matrix, out=to_x)
            torch.mm(own, part, out=to_weights)
        grad_rows = grad_x.new_zeros(ctx.count, grad_x.shape[1]).index_add_(0, index, grad_x)
        return grad_rows, None, grad_relation, grad_weights, None, None


def _differences(y: Tensor, relation: Tensor) -> tuple[Tensor, ...]:
    """Return y and r in float32 or wider, a and b."""
    y = upcast(y)
    relation = relation.to(y.dtype)
    head, tail, other = y.view(len(relation), 3, y.shape[1]).unbind(1)
    moved = head + relation
    return y, relation, moved - tail, moved - other


def _kinds(sizes: list[int]) -> tuple[list[int], list[int]]:
    """The relations that have edges, and the number of rows of each: three per edge."""
    kinds = [kind for kind, size in enumerate(sizes) if size]
    return kinds, [3 * sizes[kind] for kind in kinds]


def _of(matrices: Tensor, kinds: list[int]) -> list[Tensor]:
    each = matrices.unbind(0)
    return [each[kind] for kind in kinds]

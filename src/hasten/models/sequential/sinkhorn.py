"""Doubly stochastic matrices from logits by Sinkhorn iteration, for many small matrices at once.

Sinkhorn & Knopp 1967: normalize the columns and rows of exp(logits) alternately, 20 times as in
arXiv 2512.24880 (equation 9). With extreme logits, or near an asymmetric permutation, 20 iterations
are far from convergence. The rounding of Altschuler, Weed & Rigollet 2017 (algorithm 2) then makes
rows and columns sum to 1. Converged matrices are not rounded. For 2×2 matrices there is a closed
form.

On a CPU the iteration is one autograd function over vectors of the entries of all matrices, on
scalings instead of logarithms. If the logits of a matrix differ by more than 60, float32 scalings
would overflow, and the iteration uses logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import upcast

ITERATIONS = 20
#: largest difference of the logits of a matrix for which float32 scalings are safe
SAFE = 60.0
#: largest error of a column sum without rounding; rounding is not differentiable at exact matrices,
#: such as the initial ones, where noise would decide the gradient
TOLERANCE = 5e-5


def sinkhorn(logits: Tensor) -> Tensor:
    """Doubly stochastic matrices [n, n, T] from logits [n, n, T] (rows, columns, matrices).

    In float32 (or float64), also under autocast.
    """
    with torch.autocast(logits.device.type, enabled=False):
        logits = upcast(logits)
        if len(logits) == 2:
            diagonal = torch.sigmoid(
                (logits[0, 0] + logits[1, 1] - logits[0, 1] - logits[1, 0]) / 2
            )
            row = torch.stack([diagonal, 1 - diagonal])
            return torch.stack([row, row.flip(0)])
        if logits.device.type != "cpu" or torch.compiler.is_compiling() or _far_apart(logits):
            return _round(_iterate(logits))
        scaled: Tensor = _Sinkhorn.apply(logits)  # type: ignore[no-untyped-call]
        return _round(scaled)


def sinkhorn_reference(logits: Tensor) -> Tensor:
    """The iteration and the rounding in logarithms."""
    return _round(_iterate(logits))


def _iterate(logits: Tensor) -> Tensor:
    for _ in range(ITERATIONS):
        logits = logits - torch.logsumexp(logits, dim=0, keepdim=True)
        logits = logits - torch.logsumexp(logits, dim=1, keepdim=True)
    return logits.exp()


def _far_apart(logits: Tensor) -> bool:
    """Whether float32 scalings could overflow for a matrix."""
    spread = logits.detach().amax((0, 1)) - logits.detach().amin((0, 1))
    return bool((spread > SAFE).any())


def _round(matrix: Tensor) -> Tensor:
    """The same matrix, or a doubly stochastic one near it if columns do not sum to 1.

    Columns above 1 are scaled down (rows already sum to 1); an outer product adds the rest.
    """
    sums = matrix.sum(0, keepdim=True)
    missed = (sums.detach() - 1).abs().amax(1, keepdim=True) > TOLERANCE
    if matrix.device.type == "cpu" and not torch.compiler.is_compiling() and not missed.any():
        return matrix
    scaled = matrix / sums.clamp(min=1)
    rows = (1 - scaled.sum(1, keepdim=True)).clamp(min=0)
    columns = (1 - scaled.sum(0, keepdim=True)).clamp(min=0)
    total = rows.sum(0, keepdim=True).clamp(min=TOLERANCE / 2)
    return torch.where(missed, scaled + rows * (columns / total), matrix)


class _Sinkhorn(torch.autograd.Function):
    """The iteration on scalings: the matrix is ``u_i K_ij v_j`` with K = exp(logits)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        kernel = torch.exp(logits - logits.amax((0, 1)))
        over_rows, over_columns = _sides(kernel)
        columns = [kernel.sum(0).reciprocal_()]
        rows = [_weighted(over_columns, columns[0]).reciprocal_()]
        for _ in range(1, ITERATIONS):
            columns.append(_weighted(over_rows, rows[-1]).reciprocal_())
            rows.append(_weighted(over_columns, columns[-1]).reciprocal_())
        ctx.save_for_backward(kernel, *columns, *rows)
        return kernel * rows[-1][:, None] * columns[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        kernel: Tensor
        kernel, *scalings = ctx.saved_tensors
        over_rows, over_columns = _sides(kernel)
        columns, rows = scalings[:ITERATIONS], scalings[ITERATIONS:]
        # in logarithms: f_i = log u_i = -logsumexp_j(l_ij + g_j), g_j = -logsumexp_i(l_ij + f_i)
        inner: Tensor = grad * rows[-1][:, None]
        inner *= columns[-1]
        weighted = inner * kernel
        grad_row = weighted.sum(1).mul_(rows[-1])
        grad_column = weighted.sum(0)
        for step in reversed(range(ITERATIONS)):
            # both are gradients times the scaling
            column = columns[step]
            inner.addcmul_(grad_row[:, None], column, value=-1)
            column_grad = _weighted(over_rows, grad_row).mul_(column)
            grad_column = column_grad.neg_() if step < ITERATIONS - 1 else grad_column - column_grad
            grad_column *= column
            if step == 0:
                inner -= grad_column
                break
            row = rows[step - 1]
            inner.addcmul_(row[:, None], grad_column, value=-1)
            grad_row = _weighted(over_columns, grad_column).mul_(row).neg_().mul_(row)
        return inner.mul_(kernel)


#: a matrix, or its rows (columns) over all matrices
_Side = Tensor | Sequence[Tensor]


def _sides(kernel: Tensor) -> tuple[_Side, _Side]:
    """The operands of sums over the rows, and over the columns."""
    if kernel.shape[2] == 1:  # one matrix: a single matrix product
        return kernel[:, :, 0].T, kernel[:, :, 0]
    return kernel.unbind(0), kernel.unbind(1)


def _weighted(side: _Side, weights: Tensor) -> Tensor:
    """[n, T] ``Σ_k side_k weights_k``."""
    if isinstance(side, Tensor):
        return side @ weights
    first, *others = side
    factor, *factors = weights.unbind(0)
    out = first * factor
    for part, weight in zip(others, factors, strict=True):
        out.addcmul_(part, weight)
    return out

"""Doubly stochastic matrices from logits by Sinkhorn's iteration, many small ones at once.

Sinkhorn & Knopp 1967: the columns and the rows of exp(logits) are normalised in turn, 20 times, as
arXiv 2512.24880 (equation 9) does. Twenty iterations are far from the limit where the logits are
extreme, or where the matrix is near a permutation and not symmetric; what is then missing is added
by the rounding of Altschuler, Weed & Rigollet 2017 (algorithm 2), so that rows and columns always
sum to 1. Where the iteration has converged, nothing is rounded. Two by two has a closed form, which
is taken.

On a CPU the iteration is one function with its own backward pass, over vectors of all matrices'
entries, on scalings instead of logarithms. Where logits of one matrix lie further apart than
float32 scalings can tell (60), it takes the logarithms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import wide

ITERATIONS = 20
#: widest distance between the logits of a matrix whose scalings stay within float32
SAFE = 60.0
#: by how much a column may miss 1 before the matrix is rounded; rounding has a kink where all is
#: exact, as it is in the beginning, and noise alone would decide about the gradient there
TOLERANCE = 5e-5


def sinkhorn(logits: Tensor) -> Tensor:
    """Doubly stochastic [n, n, T], of the logits [n, n, T] (rows, columns, matrices).

    In float32 (or float64), within autocast too.
    """
    with torch.autocast(logits.device.type, enabled=False):
        logits = logits.to(wide(logits))
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
    """The iteration and the rounding, written out in logarithms."""
    return _round(_iterate(logits))


def _iterate(logits: Tensor) -> Tensor:
    for _ in range(ITERATIONS):
        logits = logits - torch.logsumexp(logits, dim=0, keepdim=True)
        logits = logits - torch.logsumexp(logits, dim=1, keepdim=True)
    return logits.exp()


def _far_apart(logits: Tensor) -> bool:
    """Whether a matrix has logits whose scalings float32 could not hold."""
    spread = logits.detach().amax((0, 1)) - logits.detach().amin((0, 1))
    return bool((spread > SAFE).any())


def _round(matrix: Tensor) -> Tensor:
    """The same matrix, or a doubly stochastic one near it where columns do not yet sum to 1.

    Columns above 1 are scaled down (rows already sum to 1), and what is missing is added as an
    outer product.
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
        columns, rows = [], []
        row = None
        for _ in range(ITERATIONS):
            column = _along_rows(kernel, row).reciprocal_()
            row = _along_columns(kernel, column).reciprocal_()
            columns.append(column)
            rows.append(row)
        ctx.save_for_backward(kernel, *columns, *rows)
        assert row is not None
        return kernel * row[:, None] * column

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        kernel: Tensor
        kernel, *scalings = ctx.saved_tensors
        columns, rows = scalings[:ITERATIONS], scalings[ITERATIONS:]
        # in logarithms: f_i = log u_i = -logsumexp_j(l_ij + g_j), g_j = -logsumexp_i(l_ij + f_i)
        inner: Tensor = grad * rows[-1][:, None]
        inner *= columns[-1]
        weighted = inner * kernel
        grad_row = weighted.sum(1)
        grad_column = weighted.sum(0)
        for step in reversed(range(ITERATIONS)):
            row, column = rows[step], columns[step]
            grad_row *= row
            inner.addcmul_(grad_row[:, None], column, value=-1)
            grad_column.addcmul_(_along_rows(kernel, grad_row), column, value=-1)
            grad_column *= column
            before = rows[step - 1] if step else torch.ones_like(row)
            inner.addcmul_(before[:, None], grad_column, value=-1)
            grad_row = _along_columns(kernel, grad_column).mul_(before).neg_()
            grad_column = torch.zeros_like(grad_column)
        return inner.mul_(kernel)


def _along_rows(kernel: Tensor, row: Tensor | None) -> Tensor:
    """[n, T] sums over the rows of ``kernel * row``, a matrix at a time; row None: ones."""
    if row is None:
        return kernel.sum(0)
    out = kernel[0] * row[0]
    for number in range(1, len(row)):
        out.addcmul_(kernel[number], row[number])
    return out


def _along_columns(kernel: Tensor, column: Tensor) -> Tensor:
    """[n, T] sums over the columns of ``kernel * column``."""
    out = kernel[:, 0] * column[0]
    for number in range(1, len(column)):
        out.addcmul_(kernel[:, number], column[number])
    return out

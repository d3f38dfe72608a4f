"""Gradients of single loss terms, stored as the factors that their inner products need.

A loss term belongs to a query with the vector x [D], which scores catalog row j as
``x · E_j + b_j``. With the residuals ρ = ∂ℓ/∂s over the catalog, its gradient is

- of the table E: ρ xᵀ, plus a [D] at row e if the query reads row e of the same table;
- of the bias: ρ;
- of the relations: c [D] at row r;
- of a linear layer: δ fᵀ, its output gradient times its input;
- of all small parameters (filters, gains, shifts): one dense vector.

Residuals are a row that all terms of a query share (``dense``) plus one value at a target:
ρ = dense + value · 1[target]. Either may be absent.

Residuals of the losses, with the scores s:

- ``1-n`` (KvsAll): binary cross-entropy over all rows, labels y' = (1 - ε) y + ε / N: σ(s) - y'.
- ``softmax``: cross-entropy of one target j: softmax(s) - (1 - ε) 1[j] - ε / N.
- positive: the binary cross-entropy of entry j alone: (σ(s_j) - y') 1[j]; y' is 1 except for the
  label smoothing of ``1-n``.

Shapes: n terms of m queries, D width, N catalog rows, k terms with row gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hasten.ops.dense.product import product
from hasten.ops.graph.csr import CSR

Loss = Literal["training", "positive"]
#: of a ConvE, last-2 adds its linear layer to the output layer, last-3 its convolution too
Layers = Literal["all", "last", "last-2", "last-3"]


@dataclass(frozen=True)
class Linear:
    """A linear layer: its inputs [m, F] and the gradients of its outputs [n, G]."""

    inputs: Tensor
    output_grads: Tensor


@dataclass(frozen=True)
class RowMask:
    """The rows that the tests touch, bool [entities] and [relations]; others contribute nothing."""

    entities: Tensor
    relations: Tensor


@dataclass(frozen=True)
class RowGradients:
    """Gradients of the rows that queries read.

    terms: int64 [k] the terms that they belong to, None for all; entity, relation: int64 [k] the
    rows; head_grads, relation_grads: [k, D].
    """

    terms: Tensor | None
    entity: Tensor
    relation: Tensor
    head_grads: Tensor
    relation_grads: Tensor


@dataclass(frozen=True)
class Factors:
    """The gradients of n loss terms of m queries.

    query: int64 [n] the query of each term, None if every term has its own, in order. vectors:
    [m, D]; dense: [m, N] or None; target: int64 [n] and value: [n], or both None; bias: whether the
    catalog has one. entity: int64 [m] and rows: None if only the output layer counts.
    """

    query: Tensor | None
    vectors: Tensor
    dense: Tensor | None
    target: Tensor | None
    value: Tensor | None
    bias: bool
    entity: Tensor | None = None
    rows: RowGradients | None = None
    linears: Sequence[Linear] = ()
    small: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors if self.query is None else self.query)

    def residuals_at(self, rows: Tensor) -> Tensor:
        """[n, k] the residuals of the terms at k catalog rows."""
        total = self.vectors.new_zeros(len(self), len(rows))
        if self.dense is not None:
            total += per_term(self.dense.index_select(1, rows), self.query)
        if self.target is not None and self.value is not None:
            total += (self.target[:, None] == rows) * self.value[:, None]
        return total


@dataclass(frozen=True)
class Arithmetic:
    """The precision of matrix products: ``low``, or None for that of the operands.

    Everything else, sums of products included, stays in the precision of the model.
    """

    low: torch.dtype | None = None

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """``a @ b``."""
        if self.low is None:
            return a @ b
        return (a.to(self.low) @ b.to(self.low)).to(a.dtype)

    def cached_product(self, a: Tensor, b: Tensor) -> Tensor:
        """``a @ b`` for shapes that repeat, b [K, N] contiguous."""
        return product(a, b) if self.low is None else self.product(a, b)


def per_term(rows: Tensor, query: Tensor | None) -> Tensor:
    """Rows of queries [m, ...] as rows of their terms [n, ...]."""
    return rows if query is None else rows.index_select(0, query)


def scores_of(vectors: Tensor, table: Tensor, bias: Tensor | None, mm: Arithmetic) -> Tensor:
    """[m, N] the scores of all rows, a new tensor."""
    scores = mm.product(vectors, table.T)
    return scores if bias is None else scores.add_(bias)


def row_residuals(scores: Tensor, answers: CSR, smoothing: float) -> Tensor:
    """[m, N] of ``1-n``, in place of the scores. answers: the distinct ones of each query."""
    residuals = scores.sigmoid_()
    if smoothing:
        residuals.sub_(smoothing / residuals.shape[1])
    place = answers.rows * residuals.shape[1] + answers.items
    positions = torch.from_numpy(place).to(residuals.device)
    residuals.view(-1).index_add_(
        0, positions, residuals.new_full((len(positions),), smoothing - 1)
    )
    return residuals


def softmax_residuals(
    scores: Tensor, target: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The part [m, N] that all terms of a query share, and the value [n] at each target."""
    shared = torch.softmax(scores, 1)
    if smoothing:
        shared.sub_(smoothing / scores.shape[1])
    return shared, scores.new_full((len(target),), smoothing - 1)


def positive_residuals(
    vectors: Tensor, table: Tensor, bias: Tensor | None, target: Tensor, label: float
) -> Tensor:
    """[n] at the targets. vectors: [n, D]."""
    scores = torch.linalg.vecdot(vectors, table.index_select(0, target))
    if bias is not None:
        scores = scores + bias[target]
    return torch.sigmoid(scores) - label

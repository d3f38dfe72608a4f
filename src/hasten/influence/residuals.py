"""Residuals ρ = ∂ℓ/∂s of losses over a catalogue, with s = x · E + b.

- ``1-n`` (KvsAll): binary cross-entropy over all rows, labels y' = (1 - ε) y + ε / N: σ(s) - y'.
- ``softmax``: cross-entropy of one target j: softmax(s) - 1[j].
- positive: the binary cross-entropy of entry j alone: (σ(s_j) - y') 1[j]; y' is 1 except for the
  label smoothing of ``1-n``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.influence.factors import Arithmetic
from hasten.ops.graph.csr import CSR


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
    at = torch.from_numpy(place).to(residuals.device)
    residuals.view(-1).index_add_(0, at, residuals.new_full((len(at),), smoothing - 1))
    return residuals


def softmax_residuals(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The part [m, N] that all terms of a query share, and the value [n] at each target."""
    return torch.softmax(scores, 1), scores.new_full((len(target),), -1.0)


def positive_residuals(
    vectors: Tensor, table: Tensor, bias: Tensor | None, target: Tensor, label: float
) -> Tensor:
    """[n] at the targets. vectors: [n, D]."""
    scores = torch.linalg.vecdot(vectors, table.index_select(0, target))
    if bias is not None:
        scores = scores + bias[target]
    return torch.sigmoid(scores) - label

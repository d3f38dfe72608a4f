"""GF-CF against its filters as dense matrices."""

from __future__ import annotations

import pytest
import torch

from hasten.models.linear.eigenvectors import leading_eigenvectors
from hasten.models.linear.gfcf import GFCF
from tests.models.linear.made import fitted, histories, made, matrix, scores

CPU = torch.device("cpu")


@pytest.mark.parametrize("vectors", [3, 100])
def test_scores_are_those_of_the_dense_filters(vectors):
    dataset = made()
    x = matrix(dataset)
    users, items = x.sum(1).clamp(min=1), x.sum(0)
    root = items.clamp(min=1).sqrt()
    normal = x / users.sqrt()[:, None] / root
    kept = torch.linalg.svd(normal, full_matrices=False).Vh[:vectors]
    inverse, degrees = (items > 0) / root, (items > 0) * root
    linear = normal.T @ normal
    low_pass = inverse[:, None] * (kept.T @ kept) * degrees
    expected = histories() @ (linear + 0.7 * low_pass)
    found = scores(fitted(GFCF, dataset, vectors=vectors, alpha=0.7))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def operator(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A symmetric matrix with these eigenvalues, and its eigenvectors."""
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator)).Q
    return (basis * values) @ basis.T, basis


def test_leading_eigenvectors_span_the_space_of_the_dense_ones():
    values = torch.cat([torch.full((40,), 1.0), torch.linspace(0.8, 0.0, 460)])
    matrix, basis = operator(values)
    found = leading_eigenvectors(lambda x: matrix @ x, 500, 40, CPU)
    torch.testing.assert_close(found.T @ found, torch.eye(40), rtol=0, atol=1e-4)
    assert float((found - basis[:, :40] @ (basis[:, :40].T @ found)).norm(dim=0).max()) < 1e-2


def test_an_operator_of_low_rank_is_spanned_completely():
    values = torch.zeros(100)
    values[:5] = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    matrix, _ = operator(values)
    found = leading_eigenvectors(lambda x: matrix @ x, 100, 100, CPU)
    torch.testing.assert_close(found.T @ found, torch.eye(100), rtol=0, atol=1e-4)
    torch.testing.assert_close((matrix @ found[:, :5]).norm(dim=0), values[:5], rtol=0, atol=1e-4)

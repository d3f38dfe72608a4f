"""EASE against its closed form in float64."""

from __future__ import annotations

import pytest
import torch

from hasten.errors import HastenError
from hasten.models.interface import Sizes
from hasten.models.linear import ease
from hasten.models.linear.ease import EASE, EASEOptions
from tests.models.linear.made import fitted, histories, made, matrix, scores


def plain(x: torch.Tensor, l2: float) -> torch.Tensor:
    inverse = torch.linalg.inv(x.T @ x + l2 * torch.eye(x.shape[1], dtype=x.dtype))
    weights = torch.eye(x.shape[1], dtype=x.dtype) - inverse / inverse.diagonal()
    return weights - torch.diag(weights.diagonal())


@pytest.mark.parametrize("l2", [0.5, 30.0])
def test_scores_are_those_of_the_closed_form(l2):
    dataset = made()
    expected = histories() @ plain(matrix(dataset), l2)
    torch.testing.assert_close(scores(fitted(EASE, dataset, l2=l2)), expected, rtol=0, atol=1e-5)


def test_the_closed_form_is_the_optimum():
    x, l2 = matrix(made()), 3.0
    weights = plain(x, l2).requires_grad_()
    ((x - x @ weights).square().sum() + l2 * weights.square().sum()).backward()
    off_diagonal = weights.grad - torch.diag(weights.grad.diagonal())
    assert float(off_diagonal.abs().max()) < 1e-10


def test_more_items_than_memory_are_refused_with_the_memory_they_need(monkeypatch):
    monkeypatch.setattr(ease, "memory_bytes", lambda: 10**9)
    with pytest.raises(HastenError, match=r"needs 80\.0 GB .* 100,000 items.* slim or itemknn"):
        EASE(EASEOptions(), Sizes(users=10, items=100_000))


def test_fitted_weights_are_stored_by_row():
    dataset = made()
    model = EASE(EASEOptions(), Sizes.of(dataset))
    model.fit(dataset)
    assert model.weights.is_contiguous()  # otherwise each block of scores copies all of them

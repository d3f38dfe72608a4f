"""SLIM: the optimality conditions of its problem, and a naive solver."""

from __future__ import annotations

import pytest
import torch

from hasten.models.interface import Sizes
from hasten.models.linear import slim
from hasten.models.linear.elastic_net import nonnegative_elastic_nets
from hasten.models.linear.slim import SLIM
from tests.models.linear.made import fitted, histories, made, matrix, scores


def dense(model: SLIM) -> torch.Tensor:
    """[N, N] float64 from the sparse weights."""
    items = model.sizes.items
    weights = torch.zeros(items, items, dtype=torch.float64)
    rows = torch.repeat_interleave(torch.arange(items), model.offsets.diff())
    weights[rows, model.targets.long()] = model.weights.double()
    return weights


def naive(x: torch.Tensor, l1: float, l2: float) -> torch.Tensor:
    """Projected gradient steps, column by column, in float64."""
    gram = x.T @ x
    step = 1 / float(torch.linalg.eigvalsh(gram).max() + l2)
    weights = torch.zeros_like(gram)
    for _ in range(20_000):
        gradient = gram @ weights - gram + l1 + l2 * weights
        weights = (weights - step * gradient).clamp(min=0).fill_diagonal_(0)
    return weights


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 5.0), (1.0, 2.0), (2.5, 0.1)])
@pytest.mark.parametrize("layout", ["whole", "active", "parts"])
def test_the_weights_meet_the_optimality_conditions(l1, l2, layout, monkeypatch):
    if layout != "whole":  # few candidates at first, more where these are not the optimum
        monkeypatch.setattr(slim, "_ACTIVE", 3)
    if layout == "parts":  # more items than one dense matrix holds, few columns at a time
        monkeypatch.setattr(slim, "_DENSE", 20)
        monkeypatch.setattr(slim, "_TOGETHER", 60)
    dataset = made()
    weights = dense(fitted(SLIM, dataset, l1=l1, l2=l2, tolerance=1e-7))
    x = matrix(dataset)
    gradient = x.T @ (x @ weights - x) + l1 + l2 * weights
    assert float(weights.min()) >= 0
    assert not weights.diagonal().any()
    assert float(gradient[weights > 0].abs().max()) < 1e-4
    free = ~torch.eye(len(weights), dtype=torch.bool)
    assert float(gradient[free & (weights == 0)].min()) > -1e-4


def test_scores_are_those_of_a_naive_solver():
    dataset = made()
    expected = histories() @ naive(matrix(dataset), 1.0, 2.0)
    found = scores(fitted(SLIM, dataset, l1=1.0, l2=2.0, tolerance=1e-7))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_several_problems_meet_the_optimality_conditions():
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(3, 200, 50, generator=generator) < 0.1).float()
    gram = (x.mT @ x).permute(1, 2, 0)
    target = gram[0].clone()
    target[0] = 0
    weights = nonnegative_elastic_nets(gram, target, 0.5, 4.0, 1e-7)
    gradient = torch.einsum("ijb,jb->ib", gram, weights) - target + 0.5 + 4.0 * weights
    assert not weights[0].any()
    assert float(gradient[weights > 0].abs().max()) < 1e-4
    assert float(gradient[(target > 0) & (weights == 0)].min()) > -1e-4


def test_a_large_penalty_leaves_no_weights():
    assert not scores(fitted(SLIM, made(), l1=1000.0)).any()


def test_a_problem_with_many_weights_is_solved_few_times(monkeypatch):
    widths = []

    def solve(gram, *others):
        widths.append(len(gram))
        return nonnegative_elastic_nets(gram, *others)

    monkeypatch.setattr(slim, "_ACTIVE", 1)
    monkeypatch.setattr(slim, "nonnegative_elastic_nets", solve)
    model = SLIM(SLIM.Options(l1=0.0, l2=2.0), Sizes.of(made()))
    row, place, value = model._solve(8 * torch.eye(64), torch.full((1, 64), 5.0))
    assert widths == [1, 2, 4, 8, 16, 32, 64]
    assert place.tolist() == list(range(64))
    assert not row.any()
    assert (value == 0.5).all()

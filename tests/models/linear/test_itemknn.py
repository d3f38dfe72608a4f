"""Item-kNN against all pairs of items, one by one."""

from __future__ import annotations

import math

import pytest
import torch

from hasten.models.linear import cooccurrence
from hasten.models.linear.itemknn import ItemKNN
from tests.models.linear.made import ITEMS, fitted, histories, made, matrix, scores


@pytest.mark.parametrize("weighting", ["none", "idf", "length"])
@pytest.mark.parametrize(("neighbors", "shrinkage"), [(4, 0.0), (4, 3.0), (100, 3.0)])
def test_scores_are_those_of_brute_force(weighting, neighbors, shrinkage, monkeypatch):
    monkeypatch.setattr(cooccurrence, "_ELEMENTS", 100)  # several blocks of items
    dataset = made()
    x = matrix(dataset)
    lengths = x.sum(1).clamp(min=1)
    squares = {
        "none": torch.ones_like(lengths),
        "idf": torch.log(1 + x.shape[1] / lengths) ** 2,
        "length": 1 / lengths,
    }[weighting]
    x = x * (squares * x.sum() / (squares[:, None] * x).sum()).sqrt()[:, None]
    similarity = torch.zeros(ITEMS, ITEMS, dtype=torch.float64)
    for i in range(ITEMS):
        for j in range(ITEMS):
            both = float(x[:, i] @ x[:, j])
            if i != j and both:
                norms = math.sqrt(float(x[:, i] @ x[:, i]) * float(x[:, j] @ x[:, j]))
                similarity[i, j] = both / (norms + shrinkage)
    for i in range(ITEMS):
        ranked = sorted(range(ITEMS), key=lambda j: (-float(similarity[i, j].float()), j))
        similarity[i, ranked[neighbors:]] = 0
    expected = histories() @ similarity.T
    model = fitted(ItemKNN, dataset, neighbors=neighbors, shrinkage=shrinkage, weighting=weighting)
    torch.testing.assert_close(scores(model), expected, rtol=0, atol=1e-5)

"""Co-occurrence counts against the product of matrices."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.models.linear import cooccurrence as module
from hasten.models.linear.base import training_pairs
from hasten.models.linear.cooccurrence import cooccurrences
from tests.models.linear.made import ITEMS, USERS, made, matrix


@pytest.mark.parametrize("elements", [1, 60, 1 << 22])
@pytest.mark.parametrize("dense", [0.0, 2.0, 1000.0])  # all rows in arrays, some, none
@pytest.mark.parametrize("weighted", [False, True])
def test_entries_are_those_of_the_product(elements, dense, weighted, monkeypatch):
    monkeypatch.setattr(module, "_ELEMENTS", elements)
    monkeypatch.setattr(module, "_DENSE", dense)
    dataset = made()
    pairs, x = training_pairs(dataset), matrix(dataset).numpy()
    weights = np.random.default_rng(0).random(USERS) + 0.1 if weighted else None
    expected = x.T @ (x if weights is None else weights[:, None] * x)
    found, seen = np.zeros((ITEMS, ITEMS)), []
    for row, column, values in cooccurrences(pairs, ITEMS, weights):
        assert (np.diff(row * ITEMS + column) > 0).all()
        assert (values > 0).all()
        assert not set(row) & set(seen)
        seen += row.tolist()
        found[row, column] = values
    np.testing.assert_allclose(found, expected, rtol=1e-12)

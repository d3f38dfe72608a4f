"""The pieces of the experiments with influence."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from experiments.influence import area_under_curve, plant


def test_planted_triples_are_wrong_and_as_many_as_asked():
    rows = [(f"e{i}", f"r{i % 3}", f"e{(i * 7 + 1) % 50}") for i in range(200)]
    parts = {"train": rows[:160], "valid": rows[160:180], "test": rows[180:]}
    made, wrong = plant(parts, 0.05, seed=1)
    assert len(wrong) == 8
    assert not wrong & set(rows)
    changed = [(a, b) for a, b in zip(parts["train"], made["train"], strict=True) if a != b]
    assert {b for _, b in changed} == wrong
    for (head, relation, tail), (h, r, t) in changed:
        assert relation == r
        assert (head == h) != (tail == t)
    assert (made["valid"], made["test"]) == (parts["valid"], parts["test"])
    assert plant(parts, 0.05, seed=1)[1] == wrong
    assert plant(parts, 0.05, seed=2)[1] != wrong


def test_area_is_that_of_a_second_implementation():
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 20, 300).astype(float)  # with ties
    positive = generator.random(300) < 0.2
    assert area_under_curve(scores, positive) == pytest.approx(roc_auc_score(positive, scores))
    assert area_under_curve(-scores, positive) == pytest.approx(roc_auc_score(positive, -scores))

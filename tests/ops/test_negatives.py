"""Exact negatives: never a known item, uniform over the rest."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import key


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_negatives_avoid_known_items_and_reach_all_others(data):
    count = data.draw(st.integers(2, 12))
    rows = data.draw(st.integers(1, 4))
    known = [
        data.draw(st.lists(st.integers(0, count - 1), max_size=count - 1)) for _ in range(rows)
    ]
    pairs = [(r, i) for r, items in enumerate(known) for i in items]
    row = np.array([r for r, _ in pairs], np.int64)
    item = np.array([i for _, i in pairs], np.int64)
    prepared = KnownItems.build(row, item, rows, count)
    which = torch.arange(rows).repeat_interleave(400)
    drawn = negatives(prepared, which, key(data.draw(st.integers(0, 99))), torch.arange(400 * rows))
    for r in range(rows):
        assert set(drawn[which == r].tolist()) == set(range(count)) - set(known[r])


def test_negatives_are_uniform():
    prepared = KnownItems.build(np.array([0, 0, 0]), np.array([2, 3, 7]), 1, 10)
    drawn = negatives(
        prepared, torch.zeros(70_000, dtype=torch.int64), key(1), torch.arange(70_000)
    )
    counts = torch.bincount(drawn, minlength=10)
    free = [0, 1, 4, 5, 6, 8, 9]
    assert (counts[free] - 10_000).abs().max() < 450


def test_negatives_broadcast():
    prepared = KnownItems.build(np.array([0, 1]), np.array([0, 1]), 2, 5)
    rows = torch.tensor([[0], [1], [0]])
    drawn = negatives(prepared, rows, key(2), torch.arange(3)[:, None], torch.arange(6))
    assert drawn.shape == (3, 6)


def test_a_row_that_knows_everything_is_refused():
    with pytest.raises(ValueError, match="row 1 knows all 3 items"):
        KnownItems.build(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 2]), 2, 3)

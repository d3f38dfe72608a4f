"""Sums of bags in blocks that keep threads busy, against one call and against a dense matrix."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import hasten.ops.graph.embedding_bag as module
from hasten.ops.graph.embedding_bag import busiest, embedding_bag_sums, equal_blocks


def made(lengths, width=5):
    generator = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    entries = int(offsets[-1])
    columns = torch.randint(11, (entries,), generator=generator, dtype=torch.int32)
    values = torch.rand(entries, generator=generator)
    return offsets, columns, values, torch.randn(11, width, generator=generator)


LENGTHS = {
    "falling": list(range(60, 0, -1)),
    "one large": [0, 0, 500, *[1] * 40],
    "some empty": [*[0] * 30, *[7] * 25, *[0] * 30],
    "all empty": [0] * 12,
    "even": [4] * 64,
}


@pytest.fixture
def small(monkeypatch):
    """ColumnBlocks of few entries are worth a call."""
    monkeypatch.setattr(module, "_MIN_BLOCK_ENTRIES", 8)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", LENGTHS)
def test_blocks_hold_every_bag_once_and_are_no_worse_than_one(small, kind, threads):
    offsets = made(LENGTHS[kind])[0].numpy()
    bounds = equal_blocks(offsets, threads)
    assert (bounds[0], bounds[-1]) == (0, len(offsets) - 1)
    assert (np.diff(bounds) > 0).all()
    whole = np.array([0, len(offsets) - 1])
    assert busiest(offsets, bounds, threads) <= busiest(offsets, whole, threads)
    if threads == 1 or kind in ("even", "all empty"):
        assert len(bounds) == 2  # nothing to gain


def test_bags_that_fall_in_length_are_made_even(small):
    offsets = np.concatenate([[0], np.cumsum(np.arange(400, 0, -1))])
    bounds = equal_blocks(offsets, 2)
    share = offsets[-1] / 2
    assert busiest(offsets, np.array([0, 400]), 2) > 1.4 * share
    assert busiest(offsets, bounds, 2) <= 1.1 * share


def test_the_busiest_thread_is_counted_as_torch_divides_bags():
    offsets = np.array([0, 5, 6, 7, 7, 20])
    # two threads take three bags and two: 7 and 13 entries
    assert busiest(offsets, np.array([0, 5]), 2) == 13
    # of the first two bags one each: 5; of the last three two and one: 1 and 13
    assert busiest(offsets, np.array([0, 2, 5]), 2) == 5 + 13
    # a thread more than bags has none
    assert busiest(offsets, np.array([0, 2, 5]), 4) == 5 + 13


@pytest.mark.parametrize("kind", LENGTHS)
def test_equals_one_call_bit_for_bit_and_the_dense_product(small, kind, monkeypatch):
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 4)
    offsets, columns, values, x = made(LENGTHS[kind])
    calls = []
    monkeypatch.setattr(module, "_bags", lambda *given: calls.append(given) or one(*given))

    def one(offsets, columns, values, x):
        return F.embedding_bag(
            columns, x, offsets, mode="sum", per_sample_weights=values, include_last_offset=True
        )

    found = embedding_bag_sums(offsets, columns, values, x)
    assert torch.equal(found, one(offsets, columns, values, x))
    dense = torch.zeros(len(offsets) - 1, len(x))
    for row, (low, high) in enumerate(pairwise(offsets.tolist())):
        for e in range(low, high):
            dense[row, columns[e]] += values[e]
    torch.testing.assert_close(found, dense @ x)
    assert (len(calls) > 1) == (kind in ("falling", "some empty"))

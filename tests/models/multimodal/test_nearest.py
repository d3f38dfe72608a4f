"""Nearest rows and companions against everything at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.models.multimodal import nearest as module
from hasten.models.multimodal.nearest import companions, nearest
from hasten.ops.graph.csr import CSR
from tests.ops.reference import nearest_reference


@pytest.mark.parametrize("k", [1, 4, 60])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_nearest_in_blocks_is_that_of_all_at_once(k, rows):
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    found = nearest(x, k, rows)
    assert found.shape == (50, min(k, 50))
    assert [set(row) for row in found.tolist()] == nearest_reference(x, k)
    assert (found == torch.arange(50)[:, None]).any(1).all()  # itself


def test_rows_of_zeros_are_alone_and_copies_find_each_other():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    x[3] = x[8] = 0
    x[5] = 2 * x[6]
    found = nearest(x, 3)
    for zero in (3, 8):
        assert found[zero].tolist() == [zero, -1, -1]
        others = torch.cat([found[:zero], found[zero + 1 :]])
        assert not (others == zero).any()
    assert 6 in found[5].tolist()
    assert 5 in found[6].tolist()


@pytest.mark.parametrize("block", [1, 50, 1 << 22])
@pytest.mark.parametrize("k", [1, 5, 100])
@pytest.mark.parametrize("dense", [0, 1 / 8, 1, 100])
def test_companions_are_those_of_all_counts_at_once(block, k, dense, monkeypatch):
    monkeypatch.setattr(module, "_COUNTS", block)
    monkeypatch.setattr(module, "_DENSE", dense)  # 100: all are sorted
    generator = np.random.default_rng(0)
    held = [np.unique(generator.integers(0, 30, generator.integers(0, 12))) for _ in range(25)]
    offsets = np.concatenate([[0], np.cumsum([len(h) for h in held])]).astype(np.int64)
    pairs = CSR(offsets, np.concatenate(held).astype(np.int64))
    user, other, count = companions(pairs, 30, k)
    for u in range(25):
        shared = [
            (len(np.intersect1d(held[u], held[v])), -len(held[v]), -v) for v in range(25) if v != u
        ]
        best = [(c, -v) for c, _, v in sorted(shared, reverse=True) if c][:k]
        mine = user == u
        assert list(zip(count[mine].tolist(), other[mine].tolist(), strict=True)) == best

"""The graph of users and items against dense matrices; the order of sums and matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.models.multimodal.mmgcn import cheaper_order
from hasten.ops.graph.bipartite import Bipartite
from hasten.ops.graph.csr import CSR


@pytest.mark.parametrize("normalised", ["mean", "symmetric"])
def test_whole_and_blocks_are_the_normalised_matrix(normalised):
    pairs = CSR(np.array([0, 3, 3, 5]), np.array([0, 2, 4, 2, 3]))  # user 1 and item 1 have none
    graph = Bipartite.build(pairs, 5, normalised).to(torch.zeros((), dtype=torch.float64))
    a = torch.zeros(8, 8, dtype=torch.float64)
    for user, item in zip(pairs.rows.tolist(), pairs.items.tolist(), strict=True):
        a[item, 5 + user] = a[5 + user, item] = 1
    degree = a.sum(1).clamp(min=1)
    expected = a / degree[:, None]
    if normalised == "symmetric":
        expected = a / degree.sqrt()[:, None] / degree.sqrt()
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(graph.adjacency @ x, expected @ x)
    torch.testing.assert_close(graph.to_users @ x[:5], (expected @ x)[5:] - 0 * x[5:])
    torch.testing.assert_close(graph.to_items @ x[5:], (expected @ x)[:5])


def test_the_cheaper_order_follows_rows_and_constants():
    # few rows out, many in: sum first; the other way round the matrix first
    assert cheaper_order(100, 1000, 3000, 256, constant=False) == "aggregate first"
    assert cheaper_order(1000, 100, 3000, 256, constant=False) == "multiply first"
    # sums of a constant cost nothing, so that many entries decide for it
    assert cheaper_order(1000, 500, 10**6, 64, constant=True) == "aggregate first"
    assert cheaper_order(1000, 500, 10**6, 64, constant=False) == "multiply first"

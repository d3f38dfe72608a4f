"""The mean over layers of neighbours against a dense matrix, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.ops.graph.layer_mean import layer_mean
from hasten.ops.graph.spmm import SparseGraph
from tests.ops.reference import layer_mean_reference


def graph(nodes=9, entries=40):
    """Nodes 3 and 4 have no entry in their row; the matrix is not symmetric."""
    generator = np.random.default_rng(0)
    row = np.sort(generator.choice([n for n in range(nodes) if n not in (3, 4)], entries))
    column = generator.integers(0, nodes, entries)
    return SparseGraph.build(row.astype(np.int64), column.astype(np.int64), nodes, nodes)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_equals_the_dense_layers_forward_and_backward(layers):
    made = graph()
    torch.manual_seed(0)
    weights = made.weigh(torch.randn(len(made), dtype=torch.float64))
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([0, 3, 7, 8])
    probes = torch.randn(2, 4, 5, dtype=torch.float64)
    ours = layer_mean(made, weights, x, rows, layers)
    theirs = layer_mean_reference(made, weights, x, rows, layers)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
    grads = [
        torch.autograd.grad(sum((f * p).sum() for f, p in zip(found, probes, strict=True)), x)[0]
        for found in (ours, theirs)
    ]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-10, atol=1e-12)


def test_a_node_without_neighbours_is_its_own_share_of_the_mean():
    made = graph()
    weights = made.weigh(torch.ones(len(made)))
    x = torch.randn(9, 5)
    own, mean = layer_mean(made, weights, x, torch.tensor([3]), 3)
    torch.testing.assert_close(own[0], x[3])
    torch.testing.assert_close(mean[0], x[3] / 4)


def test_bfloat16_follows_float32():
    made = graph()
    torch.manual_seed(1)
    weights = made.weigh(torch.rand(len(made)))
    x = torch.randn(9, 5)
    rows = torch.arange(9)
    full = layer_mean(made, weights, x, rows, 3)[1]
    with torch.autocast("cpu", torch.bfloat16):
        low = layer_mean(made, weights, x, rows, 3)[1]
    assert low.dtype == torch.float32
    assert not torch.equal(low, full)
    torch.testing.assert_close(low, full, rtol=3e-2, atol=3e-2 * float(full.abs().max()))

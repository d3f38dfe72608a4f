"""A table with the sums of its neighbours, of theirs, ..., against a dense matrix."""

from __future__ import annotations

import pytest
import torch

from hasten.ops.graph.layer_sum import layer_sum
from tests.ops.graph.test_layer_mean import graph
from tests.ops.reference import layer_sum_reference


@pytest.mark.parametrize("layers", [0, 1, 2, 4])
def test_equals_the_dense_layers_forward_and_backward(layers):
    made = graph()
    torch.manual_seed(0)
    weights = made.weigh(torch.randn(len(made), dtype=torch.float64))
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    before = x.detach().clone()
    probe = torch.randn(9, 5, dtype=torch.float64)
    ours = layer_sum(made, weights, x, layers)
    theirs = layer_sum_reference(made, weights, x, layers)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    kept = probe.clone()
    grads = [torch.autograd.grad((found * probe).sum(), x)[0] for found in (ours, theirs)]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-12, atol=1e-12)
    assert torch.equal(x, before)
    assert torch.equal(probe, kept)


def test_bfloat16_follows_float32():
    made = graph()
    torch.manual_seed(1)
    weights = made.weigh(torch.rand(len(made)))
    x = torch.randn(9, 5, requires_grad=True)
    full = layer_sum(made, weights, x, 2)
    with torch.autocast("cpu", torch.bfloat16):
        low = layer_sum(made, weights, x, 2)
    assert low.dtype == torch.float32
    assert not torch.equal(low, full)
    torch.testing.assert_close(low, full, rtol=3e-2, atol=3e-2 * float(full.detach().abs().max()))
    (grad,) = torch.autograd.grad(low.sum(), x)
    assert grad.dtype == torch.float32

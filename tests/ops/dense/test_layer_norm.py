"""Layer norm: PyTorch's own without autocast, near it and half the memory under autocast."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hasten.ops.dense.layer_norm import LayerNorm, layer_norm


def case(dtype):
    torch.manual_seed(0)
    shapes = ((9, 16), (16,), (16,))
    return [(3 * torch.randn(shape, dtype=dtype) + 1).requires_grad_() for shape in shapes]


def gradients(function, leaves):
    out = function(*leaves)
    probe = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out, *torch.autograd.grad((out * probe).sum(), leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torch_bit_for_bit_without_autocast(dtype):
    leaves = case(dtype)
    expected = gradients(lambda x, w, b: F.layer_norm(x, (16,), w, b), leaves)
    for ours, theirs in zip(gradients(layer_norm, leaves), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_near_and_keeps_the_input_in_lower_precision(dtype):
    x, weight, bias = leaves = case(torch.float32)
    expected = gradients(lambda x, w, b: F.layer_norm(x, (16,), w, b), leaves)
    norm = LayerNorm(16)
    norm.weight, norm.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
    kept = []
    with (
        torch.autocast("cpu", dtype=dtype),
        torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t),
    ):
        found = gradients(layer_norm, leaves)
        assert torch.equal(norm(x), found[0])
    assert torch.equal(found[0], expected[0])  # only the gradient sees the rounded input
    assert {t.dtype for t in kept if t.shape == x.shape} >= {dtype}
    assert not any(t.data_ptr() == x.data_ptr() for t in kept)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).detach().norm() / theirs.detach().norm()) < 1e-2

"""The feed-forward network in one function against its operations one by one."""

import pytest
import torch
from torch.autograd import gradcheck

from hasten.ops.dense import dropout as dropout_module
from hasten.ops.dense.feedforward import feedforward, feedforward_reference


def _inputs(dtype, tokens=9, width=6, inner=10):
    torch.manual_seed(0)
    shapes = (tokens, width), (inner, width), (inner,), (width, inner), (width,)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def _apply(function, inputs, drop=0.3, training=True):
    x, w1, b1, w2, b2 = inputs
    torch.manual_seed(3)
    return function(x, (w1, b1), (w2, b2), drop, training)


@pytest.mark.parametrize("drop", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("training", [True, False])
def test_equals_the_operations_one_by_one_with_the_same_masks(drop, training):
    inputs = _inputs(torch.float64)
    ours = _apply(feedforward, inputs, drop, training)
    reference = _apply(feedforward_reference, inputs, drop, training)
    torch.testing.assert_close(ours, reference)
    weight = torch.randn_like(ours)
    ours, reference = (
        torch.autograd.grad((out * weight).sum(), inputs) for out in (ours, reference)
    )
    for left, right in zip(ours, reference, strict=True):
        torch.testing.assert_close(left, right)


def test_gradients_against_finite_differences():
    inputs = _inputs(torch.float64, 4, 3, 5)
    assert gradcheck(lambda *tensors: _apply(feedforward, tensors), inputs)


def test_the_masks_are_drawn_anew():
    inputs = _inputs(torch.float32)
    x, w1, b1, w2, b2 = inputs
    first, second = (feedforward(x, (w1, b1), (w2, b2), 0.5, True) for _ in range(2))
    assert not torch.equal(first, second)
    assert dropout_module.kept_scale(0.5) == 2.0


def test_bf16_autocast_stays_near_and_keeps_the_dtypes_of_gradients():
    inputs = _inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = _apply(feedforward, inputs)
    assert out.dtype == torch.bfloat16
    expected = _apply(feedforward_reference, inputs)
    error = (out.detach().float() - expected.detach()).norm() / expected.detach().norm()
    assert float(error) < 0.02
    grads = torch.autograd.grad(out.float().sum(), inputs)
    plain = torch.autograd.grad(expected.sum(), inputs)
    for left, right in zip(grads, plain, strict=True):
        assert left.dtype == torch.float32
        assert float((left - right).norm() / right.norm()) < 0.05

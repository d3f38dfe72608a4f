"""Query, key and value against the plain products, forward and backward."""

import pytest
import torch
from torch.autograd import gradcheck

from hasten.ops.dense.projections import query_key_value, query_key_value_reference


def _inputs(dtype, tokens=7, width=6):
    torch.manual_seed(0)
    shapes = (tokens, width), (3 * width, width), (width,)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("tokens", [1, 7])
def test_equals_the_plain_products(tokens):
    inputs = _inputs(torch.float64, tokens)
    ours, reference = query_key_value(*inputs), query_key_value_reference(*inputs)
    weights = [torch.randn_like(part) for part in ours]
    for left, right in zip(ours, reference, strict=True):
        assert left.is_contiguous()
        torch.testing.assert_close(left, right)
    losses = [
        sum((p * w).sum() for p, w in zip(parts, weights, strict=True))
        for parts in (ours, reference)
    ]
    for left, right in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
        torch.testing.assert_close(left, right)


def test_gradients_against_finite_differences():
    assert gradcheck(query_key_value, _inputs(torch.float64, 3, 2))


def test_an_output_that_is_not_used_has_no_gradient():
    inputs = _inputs(torch.float64)
    query, _, _ = query_key_value(*inputs)
    _, weight, _ = torch.autograd.grad(query.sum(), inputs)
    assert bool((weight[:6] != 0).any())
    assert not bool(weight[6:].any())


def test_bf16_autocast_computes_in_bf16_and_keeps_the_dtypes_of_gradients():
    inputs = _inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = query_key_value(*inputs)
        expected = query_key_value_reference(*inputs)
    for left, right in zip(ours, expected, strict=True):
        assert left.dtype == torch.bfloat16
        torch.testing.assert_close(left, right, rtol=0.02, atol=0.02)
    grads = torch.autograd.grad(sum(part.float().square().sum() for part in ours), inputs)
    plain = torch.autograd.grad(
        sum(part.square().sum() for part in query_key_value_reference(*inputs)), inputs
    )
    for left, right in zip(grads, plain, strict=True):
        assert left.dtype == torch.float32
        assert float((left - right).norm() / right.norm()) < 0.02

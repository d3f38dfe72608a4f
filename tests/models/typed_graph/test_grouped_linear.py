"""One matrix a group against one matrix a row."""

from __future__ import annotations

import torch
from torch.autograd import gradcheck

from hasten.models.typed_graph.grouped_linear import grouped_linear
from tests.ops.reference import grouped_linear_reference

SIZES = [3, 0, 1, 4]


def test_equals_a_matrix_for_every_row():
    torch.manual_seed(0)
    x, weights = torch.randn(8, 5), torch.randn(4, 5, 6)
    torch.testing.assert_close(
        grouped_linear(x, weights, SIZES), grouped_linear_reference(x, weights, SIZES)
    )


def test_a_bias_is_that_of_the_group():
    torch.manual_seed(1)
    x, weights, bias = torch.randn(8, 5), torch.randn(4, 5, 6), torch.randn(4, 6)
    torch.testing.assert_close(
        grouped_linear(x, weights, SIZES, bias), grouped_linear_reference(x, weights, SIZES, bias)
    )


def test_gradients():
    torch.manual_seed(2)
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda a, b: grouped_linear(a, b, SIZES), (x, weights))
    assert gradcheck(lambda a, b, c: grouped_linear(a, b, SIZES, c), (x, weights, bias))


def test_a_group_without_rows_has_a_gradient_of_zero():
    x, weights = torch.randn(8, 3), torch.randn(4, 3, 2, requires_grad=True)
    grouped_linear(x, weights, SIZES).sum().backward()
    assert (weights.grad[1] == 0).all()
    assert (weights.grad[0] != 0).any()


def test_autocast_multiplies_in_bfloat16():
    x, weights = torch.randn(8, 16), torch.randn(4, 16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        low = grouped_linear(x, weights, SIZES)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(
        low.float(), grouped_linear_reference(x, weights, SIZES), rtol=0.05, atol=0.2
    )

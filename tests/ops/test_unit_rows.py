"""Rows of length one, several tables side by side, against ``cat`` and ``normalize``."""

from __future__ import annotations

import pytest
import torch

from hasten.ops.unit_rows import unit_rows, unit_rows_reference


def tables(count, dtype=torch.float64):
    """Tables of 4 rows above and 3 below, the second and the fifth row of the first zero."""
    torch.manual_seed(0)
    tops = [torch.randn(4, 5, dtype=dtype) for _ in range(count)]
    bottoms = [torch.randn(3, 5, dtype=dtype) for _ in range(count)]
    tops[0][1] = bottoms[0][0] = 0.0
    return [t.requires_grad_() for t in tops], [b.requires_grad_() for b in bottoms]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_equals_the_reference_forward_and_backward(count):
    tops, bottoms = tables(count)
    ours, theirs = unit_rows(tops, bottoms), unit_rows_reference(tops, bottoms)
    assert ours.shape == (7, 5 * count)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    probe = torch.randn(7, 5 * count, dtype=torch.float64)
    probe[[1, 4]] *= 1e-12  # what a row of zeros gets is divided by 1e-12
    mine, other = (
        torch.autograd.grad((found * probe).sum(), [*tops, *bottoms]) for found in (ours, theirs)
    )
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_gradient_that_is_not_contiguous():
    tops, bottoms = tables(2)
    (mine,) = torch.autograd.grad(unit_rows(tops, bottoms).t().square().sum(0).sum(), tops[1])
    torch.testing.assert_close(mine, torch.zeros_like(mine), rtol=0, atol=1e-14)


def test_tops_of_a_lower_precision():
    tops, bottoms = tables(2, torch.float32)
    low = [top.detach().bfloat16().requires_grad_() for top in tops]
    ours, theirs = unit_rows(low, bottoms), unit_rows_reference(low, bottoms)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)
    grads = torch.autograd.grad(ours[:, 0].sum(), [low[0], bottoms[0]])
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.float32]

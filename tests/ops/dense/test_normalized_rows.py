"""Rows of length one, several tables side by side, against ``cat`` and ``normalize``."""

from __future__ import annotations

import pytest
import torch

from hasten.ops.dense.normalized_rows import normalized_rows
from tests.ops.reference import normalized_rows_reference


def tables(count, heights=(4, 3), dtype=torch.float64):
    """Tables in parts; the second row of the first part and the last row of all are zero."""
    torch.manual_seed(0)
    made = [[torch.randn(h, 5, dtype=dtype) for h in heights] for _ in range(count)]
    made[0][0][1] = made[0][-1][-1] = 0.0
    return [[part.requires_grad_() for part in parts] for parts in made]


@pytest.mark.parametrize("heights", [(4, 3), (6,), (2, 3, 1)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_equals_the_reference_forward_and_backward(count, heights):
    made = tables(count, heights)
    parts = [part for table in made for part in table]
    ours, theirs = normalized_rows(*made), normalized_rows_reference(*made)
    assert ours.shape == (sum(heights), 5 * count)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    probe = torch.randn(ours.shape, dtype=torch.float64)
    probe[[1, -1]] *= 1e-12  # what a row of zeros gets is divided by 1e-12
    grads = [torch.autograd.grad((found * probe).sum(), parts) for found in (ours, theirs)]
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_a_gradient_that_is_not_contiguous():
    made = tables(2)
    probe = torch.randn(10, 7, dtype=torch.float64)
    grads = [
        torch.autograd.grad((found.t() * probe).sum(), made[1])
        for found in (normalized_rows(*made), normalized_rows_reference(*made))
    ]
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_parts_of_a_lower_precision():
    made = tables(2, dtype=torch.float32)
    low = [[top.detach().bfloat16().requires_grad_(), bottom] for top, bottom in made]
    ours, theirs = normalized_rows(*low), normalized_rows_reference(*low)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)
    grads = torch.autograd.grad(ours[:, 0].sum(), low[0])
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.float32]


def test_autocast_keeps_the_rows_in_its_precision():
    made = tables(2, dtype=torch.float32)
    parts = [part for table in made for part in table]
    with torch.autocast("cpu", torch.bfloat16):
        ours = normalized_rows(*made)
    theirs = normalized_rows_reference(*made)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-2, atol=1e-2)
    probe = torch.randn(theirs.shape)
    probe[[1, -1]] = 0.0
    grads = [torch.autograd.grad((found.float() * probe).sum(), parts) for found in (ours, theirs)]
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2)

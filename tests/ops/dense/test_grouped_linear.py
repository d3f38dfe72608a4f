"""Linear maps of groups of rows against one linear map after the other."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hasten.ops.dense import grouped_linear as module
from hasten.ops.dense.grouped_linear import grouped_linear

SIZES = (5, 0, 9, 8)


@pytest.mark.parametrize("block", [4, 2048])
@pytest.mark.parametrize("input_gradient", [True, False])
def test_as_one_linear_map_after_the_other(monkeypatch, block, input_gradient):
    monkeypatch.setattr(module, "block_rows", lambda *_: block)
    torch.manual_seed(0)
    x = torch.randn(sum(SIZES), 6, dtype=torch.float64, requires_grad=input_gradient)
    weight = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    maps = zip(torch.split(x, SIZES), weight, bias, strict=True)
    wanted = torch.cat([F.linear(part, each.T, shift) for part, each, shift in maps])
    found = grouped_linear(x, weight, bias, SIZES)
    torch.testing.assert_close(found, wanted)
    upper = torch.randn_like(wanted)
    leaves = [each for each in (x, weight, bias) if each.requires_grad]
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, upper), torch.autograd.grad(wanted, leaves, upper)
    )


def test_large_blocks_in_float32_and_under_autocast():
    torch.manual_seed(0)
    sizes = 2048, 100
    x, weight = torch.randn(sum(sizes), 192), torch.randn(2, 192, 192)
    bias, ends = torch.randn(2, 192), (slice(0, 2048), slice(2048, None))
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    wanted = torch.cat([torch.addmm(bias[i], x[rows], weight[i]) for i, rows in enumerate(ends)])
    found = grouped_linear(x, weight, bias, sizes)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        low = grouped_linear(x, weight, bias, sizes)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), wanted, rtol=0.05, atol=0.5)
    upper = torch.randn_like(wanted)
    for full in (found, low):
        grads = torch.autograd.grad(full, leaves, upper.to(full.dtype))
        exact = torch.autograd.grad(wanted, leaves, upper, retain_graph=True)
        for one, other in zip(grads, exact, strict=True):
            assert one.dtype == torch.float32
            assert (one - other).norm() < 0.01 * other.norm()

"""Interval attention kernels in Triton's interpreter, against the equations in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from hasten.ops.attention import interval_attention as attention
from hasten.ops.attention.interval_attention import interval_attention_reference
from hasten.ops.buckets import Bucket

pytest.importorskip("triton", reason="Triton has no package for this system")
from hasten.ops.triton.interval_attention import interval_attention

BUCKETS = [Bucket(0, 1, 37), Bucket(37, 3, 5), Bucket(52, 1, 1)]
TOKENS, WIDTH, SPAN = 53, 24, 11


def problem(
    dtype: torch.dtype = torch.float32, tokens: int = TOKENS, width: int = WIDTH, span: int = SPAN
) -> tuple[list[Tensor], Tensor]:
    """Queries, keys, values and the two tables; times."""
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(tokens, width)] * 3 + [(span + 1, width)] * 2
    leaves = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return leaves, torch.randint(0, 3 * span, (tokens,), generator=generator)


def found_and_expected(
    leaves: Sequence[Tensor], times: Tensor, buckets: Sequence[Bucket], heads: int, block: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of the kernels, and of the equations in float64."""
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    out = interval_attention(*ours, times, buckets, heads, 0.0, block)
    expected = interval_attention_reference(*exact, times, buckets, heads)
    upper = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    upper = upper.to(out.dtype)
    found = [out, *torch.autograd.grad(out, ours, upper)]
    return found, [expected, *torch.autograd.grad(expected, exact, upper.double())]


@pytest.mark.parametrize(("heads", "block"), [(2, 16), (1, 32), (3, 64)])
def test_equals_the_equations(heads, block):
    leaves, times = problem()
    for a, b in zip(*found_and_expected(leaves, times, BUCKETS, heads, block), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_in_bf16_as_near_as_its_rounding():
    leaves, times = problem(torch.bfloat16)
    found, expected = found_and_expected(leaves, times, BUCKETS, 1, 32)
    eps = torch.finfo(torch.bfloat16).eps
    for ours, exact in zip(found, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        off, size = (ours - exact).detach().abs(), exact.detach().abs()
        assert float(off.norm() / size.norm()) < eps
        assert float(off.max() / size.max()) < 2 * eps


def test_dropout_takes_the_same_mask_forward_and_backward():
    """Without scores and interval values, values that are unit vectors show the mask."""
    buckets, size, drop = [Bucket(0, 2, 20)], 20, 0.4
    (query, key, value, key_table, value_table), times = problem(tokens=40, width=size)
    units = torch.eye(size).repeat(2, 1)

    def attend(*leaves: Tensor) -> Tensor:
        torch.manual_seed(5)
        return interval_attention(*leaves, times, buckets, 1, drop, 16)

    zeros = [torch.zeros_like(each) for each in (query, key, key_table, value_table)]
    weights = attend(*zeros[:2], units, *zeros[2:]).view(2, size, size)
    mask = weights * torch.arange(1, size + 1)[:, None]
    assert set(mask.mul(1 - drop).round(decimals=4).unique().tolist()) == {0.0, 1.0}
    kept = mask.tril().count_nonzero() / (size * (size + 1))
    assert float(kept) == pytest.approx(1 - drop, abs=0.08)

    leaves = [query, key, value, key_table, value_table]
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    q, k, v = (leaf.view(2, size, size) for leaf in exact[:3])
    time = times.view(2, size)
    apart = (time[:, :, None] - time[:, None]).abs().clamp(max=SPAN)
    scores = torch.einsum("bid,bijd->bij", q, k[:, None] + exact[3][apart]) / size**0.5
    future = torch.ones(size, size).triu(1).bool()
    p = torch.softmax(scores.masked_fill(future, -torch.inf), -1) * mask.double()
    expected = torch.einsum("bij,bijd->bid", p, v[:, None] + exact[4][apart]).reshape(40, size)
    out = attend(*ours)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    upper = torch.randn(40, size)
    found = torch.autograd.grad(out, ours, upper)
    for a, b in zip(found, torch.autograd.grad(expected, exact, upper.double()), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_a_score_that_is_not_finite_shows():
    leaves, times = problem()
    leaves[1][3, 2] = torch.nan
    out = interval_attention(*leaves, times, BUCKETS, 1, 0.0, 32)
    assert out[3:37].isnan().all()
    assert out[37:].isfinite().all()


def test_the_attention_of_models_is_computed_by_it_where_it_fits(monkeypatch):
    leaves, times = problem()
    intervals = attention.find_intervals(times, BUCKETS, SPAN)
    plain = attention.interval_attention(*leaves, intervals, 2, 0.0, True)
    monkeypatch.setattr(attention, "uses_triton", lambda *_: True)
    leaves[0].requires_grad_()
    out = attention.interval_attention(*leaves, intervals, 2, 0.5, training=False)
    assert hasattr(out.grad_fn, "launch")
    torch.testing.assert_close(out, plain)

"""Sinkhorn's iteration: doubly stochastic whatever the logits, and its gradients exact."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from hasten.models.sequential import sinkhorn as module
from hasten.models.sequential.sinkhorn import sinkhorn, sinkhorn_reference


def _logits(count=4, scale=1.0, matrices=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(count, count, matrices, generator=generator, dtype=dtype)


def _sums_are_one(matrix, atol):
    ones = torch.ones(matrix.shape[1:], dtype=matrix.dtype)
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(0), ones, rtol=0, atol=atol)
    torch.testing.assert_close(matrix.sum(1), ones, rtol=0, atol=atol)


@given(st.integers(2, 5), st.sampled_from([0.0, 1.0, 8.0, 50.0, 1e3, 1e30]), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_doubly_stochastic_whatever_the_logits(count, scale, seed):
    _sums_are_one(sinkhorn(_logits(count, scale, seed=seed, dtype=torch.float32)), 6e-5)


@pytest.mark.parametrize("size", [50.0, 1e3])
def test_doubly_stochastic_at_extreme_logits(size):
    """Every 0-1 pattern times ±size: also those that Sinkhorn only nears with the square root."""
    bits = torch.arange(2**9)[None] >> torch.arange(9)[:, None] & 1
    logits = (size * (2.0 * bits - 1)).view(3, 3, -1)
    _sums_are_one(sinkhorn(logits), 6e-5)
    # without the rounding the iteration alone is far away
    rows = module._iterate(logits)
    assert (rows.sum(0) - 1).abs().max() > 1e-2


def test_near_a_permutation_twenty_iterations_are_not_enough():
    """What the hyper-connections begin with, a little trained: the rounding supplies the rest."""
    logits = torch.full((4, 4, 1), -8.0)
    logits[torch.arange(4), torch.arange(4)] = 0.0
    logits[0, 1], logits[2, 3] = -3.0, -4.0
    assert (module._iterate(logits).sum(0) - 1).abs().max() > 1e-3
    _sums_are_one(sinkhorn(logits), 6e-5)


@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("scale", [0.3, 8.0, 200.0])
@pytest.mark.parametrize("matrices", [1, 5])
def test_equals_the_iteration_written_out(count, scale, matrices):
    """Forward and backward, on both sides of the limit between scalings and logarithms."""
    logits = _logits(count, scale, matrices, seed=3).requires_grad_()
    assert module._far_apart(logits) == (scale == 200.0)
    ours, expected = sinkhorn(logits), sinkhorn_reference(logits)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    weight = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad((ours * weight).sum(), logits)
    (reference,) = torch.autograd.grad((expected * weight).sum(), logits)
    torch.testing.assert_close(gradient, reference, rtol=1e-9, atol=1e-12)


def test_two_by_two_is_the_limit(monkeypatch):
    logits = _logits(2, 1.0).requires_grad_()
    monkeypatch.setattr(module, "ITERATIONS", 400)
    ours, limit = sinkhorn(logits), sinkhorn_reference(logits)
    torch.testing.assert_close(ours, limit, rtol=1e-9, atol=1e-10)
    weight = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad((ours * weight).sum(), logits)
    (reference,) = torch.autograd.grad((limit * weight).sum(), logits)
    torch.testing.assert_close(gradient, reference, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_gradients_against_finite_differences(count):
    assert gradcheck(sinkhorn, _logits(count, 2.0, matrices=2).requires_grad_())


@pytest.mark.parametrize("scale", [0.1, 3.0, 50.0, 1e3])
def test_gradients_are_finite_in_float32(scale):
    logits = _logits(4, scale, 50, dtype=torch.float32).requires_grad_()
    (sinkhorn(logits) * torch.randn(4, 4, 50)).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_float32_within_autocast():
    logits = _logits(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = sinkhorn(logits.bfloat16().float())
    assert low.dtype == torch.float32
    assert torch.equal(low, sinkhorn(logits.bfloat16()))
    _sums_are_one(low, 1e-6)

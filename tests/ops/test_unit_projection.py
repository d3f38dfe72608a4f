"""Products with projected rows of length one, against the rows themselves."""

from __future__ import annotations

import pytest
import torch

from hasten.ops.dense.unit_projection import unit_projection, unit_projection_reference


def made(features, latent, dtype=torch.float64):
    """F [9, features], M and m, and two matrices; a row of F is zero."""
    torch.manual_seed(features)
    values = torch.randn(9, features, dtype=dtype)
    values[4] = 0.0
    parts = [(latent, features), (latent,), (3, latent), (7, latent)]
    weight, bias, *matrices = (torch.randn(*p, dtype=dtype).requires_grad_() for p in parts)
    return values, weight, bias, matrices


@pytest.mark.parametrize("features", [2, 5, 6, 11])
@pytest.mark.parametrize("without", [False, True])
def test_equals_the_reference_forward_and_backward(features, without):
    values, weight, bias, matrices = made(features, 6)
    if without:  # a row of zeros stays one
        bias = torch.zeros_like(bias).requires_grad_()
    ours = unit_projection(values, weight, bias, matrices)
    theirs = unit_projection_reference(values, weight, bias, matrices)
    probes = [torch.randn_like(found) for found in ours]
    for probe in probes if without else ():
        probe[4] *= 1e-12  # what a row of zeros gets is divided by 1e-12
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-13)
    parameters = [weight, bias, *matrices]
    grads = [torch.autograd.grad(found, parameters, probes) for found in (ours, theirs)]
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("features", [5, 11])
def test_low_precision_is_near(features):
    values, weight, bias, matrices = made(features, 6, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = unit_projection(values, weight, bias, matrices)
    theirs = unit_projection_reference(values, weight, bias, matrices)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.float(), other, rtol=0.05, atol=0.05)


def test_only_the_narrower_side_is_multiplied():
    """Counted: a narrow table goes through W M, a wide one through M once and then W."""
    from torch.utils.flop_counter import FlopCounterMode

    counted = {}
    for features in (5, 11):
        values, weight, bias, matrices = made(features, 6)
        with FlopCounterMode(display=False) as counter:
            sum(found.sum() for found in unit_projection(values, weight, bias, matrices)).backward()
        counted[features] = counter.get_total_flops()
    rows, latent, out, merged = 9, 6, 10, 2 * 10 * 6 * 5
    narrow = 4 * rows * 5 * (latent + out) + 3 * merged  # W M is small, forward and backward
    assert counted[5] <= narrow + 3 * 2 * out * latent  # W m
    assert counted[11] == 4 * rows * 11 * latent + 6 * rows * latent * out

"""Rectified products and a linear map in blocks, against the two one after the other."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hasten.models.knowledge_graph.linear_of_relu import ImageGroup, linear_of_relu

SIZES = (5, 3)


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return made.requires_grad_()


def leaves(channels: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """The weight, then patches and filters of two groups."""
    shapes = [(7, channels * 6)]
    for size in SIZES:
        shapes += [(size, 4, 6), (channels, 4)]
    return [draw(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]


def grouped(tensors, dropped: bool = False) -> list[ImageGroup]:
    groups = []
    for patches, filters in zip(tensors[1::2], tensors[2::2], strict=True):
        keep = None
        if dropped:
            chance = torch.rand(len(patches), len(filters), generator=torch.Generator())
            keep = (chance < 0.6).to(patches.dtype) / 0.6
        groups.append(ImageGroup(patches, filters, keep))
    return groups


@pytest.mark.parametrize("channels", [1, 16, 21, 32])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_equals_one_after_the_other(channels, dropped, recompute):
    tensors = leaves(channels)
    groups = grouped(tensors, dropped)
    found = linear_of_relu(groups, tensors[0], recompute)
    kept = (g.filters if g.keep is None else g.keep[..., None] * g.filters for g in groups)
    products = (f @ g.patches for f, g in zip(kept, groups, strict=True))
    features = torch.cat([torch.relu(product).flatten(1) for product in products])
    expected = F.linear(features, tensors[0])
    torch.testing.assert_close(found, expected)
    upstream = draw(sum(SIZES), 7, seed=9).detach()
    wanted = torch.autograd.grad((expected * upstream).sum(), tensors)
    gradients = torch.autograd.grad((found * upstream).sum(), tensors)
    for gradient, reference in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_switch_changes_no_bit_and_keeps_less(precision):
    found = []
    for recompute in (False, True):
        tensors, kept = leaves(32, torch.float32), []
        with (
            torch.autograd.graph.saved_tensors_hooks(
                lambda t, kept=kept: (kept.append(t), t)[1], lambda t: t
            ),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
        ):
            out = linear_of_relu(grouped(tensors), tensors[0], recompute)
        assert out.dtype == torch.float32
        numbers = sum(t.numel() for t in kept)
        features = sum(SIZES) * 32 * 6
        assert numbers == sum(t.numel() for t in tensors) + (0 if recompute else features)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), tensors)])
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


def test_bf16_is_near():
    tensors = leaves(32, torch.float32)
    exact = torch.autograd.grad(
        linear_of_relu(grouped(tensors), tensors[0]).square().sum(), tensors
    )
    with torch.autocast("cpu", torch.bfloat16):
        low = linear_of_relu(grouped(tensors), tensors[0])
        gradients = torch.autograd.grad(low.square().sum(), tensors)
    for gradient, reference in zip(gradients, exact, strict=True):
        assert not torch.equal(gradient, reference)
        largest = float(reference.abs().max())
        torch.testing.assert_close(gradient, reference, rtol=0.1, atol=0.03 * largest)

"""Small convolutions with batch norm folded in, against conv2d and batch_norm in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.models.knowledge_graph.linear_of_relu import ImageGroup, linear_of_relu
from hasten.models.knowledge_graph.patch_convolution import (
    channel_moments,
    folded_filters,
    patches_of,
    tap_moments,
)
from tests.ops.reference import convolution_reference

EPS = 1e-5


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    made = {"images": draw(6, 8, 5), "gain": draw(4).abs() + 0.5, "shift": draw(4)}
    return {name: tensor.requires_grad_() for name, tensor in made.items()}


def ours(images: Tensor, filters: Tensor, gain: Tensor, shift: Tensor, keep: Tensor | None):
    kernel = round(filters.shape[1] ** 0.5)
    patches = patches_of(images, kernel)
    mean, variance = channel_moments(tap_moments(patches), filters)
    folded = folded_filters(filters, mean, variance, gain, shift, EPS)
    every = torch.eye(len(folded) * patches.shape[2], dtype=patches.dtype)
    return linear_of_relu([ImageGroup(patches, folded, keep)], every), mean, variance


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("dropped", [False, True])
def test_equals_conv2d_and_batch_norm(inputs, kernel, dropped):
    torch.manual_seed(2)
    filters = torch.randn(4, kernel**2, dtype=torch.float64, requires_grad=True)
    keep = (torch.rand(6, 4) < 0.6).double() / 0.6 if dropped else None
    images, gain, shift = inputs["images"], inputs["gain"], inputs["shift"]
    found, mean, variance = ours(images, filters, gain, shift, keep)
    expected = convolution_reference(images, filters, gain, shift, EPS, keep)
    torch.testing.assert_close(found, expected)
    plain = F.conv2d(images[:, None], filters.view(4, 1, kernel, kernel))
    torch.testing.assert_close(mean, plain.mean((0, 2, 3)))
    torch.testing.assert_close(variance, plain.var((0, 2, 3), correction=0))
    weights = torch.randn_like(expected)
    leaves = [images, filters, gain, shift]
    gradients = torch.autograd.grad((found * weights).sum(), leaves)
    wanted = torch.autograd.grad((expected * weights).sum(), leaves)
    for gradient, reference in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-8, atol=1e-8)

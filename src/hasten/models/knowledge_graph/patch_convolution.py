"""Convolution of one-channel images, batch norm, ReLU and channel dropout as one matrix product.

With K = k² taps, L positions and p_b the patches of image b [K + 1, L], whose last row is ones,
batch norm over the B·L outputs of a channel only needs the second moments M = mean of p p' over all
positions, which give the mean m and the covariance S of the taps:

    mean_c = w_c · m,   var_c = w_c' S w_c,   a_c = gain_c / sqrt(var_c + eps)
    y_b = relu(f_b p_b),   f_b = keep_b [a w, shift - a mean]

It costs a (K+1)×(K+1) matrix instead of passes over B·C·L values. The dropout mask of whole
channels is folded into the filters. Patches are in the precision of the images, moments in float32
or wider.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import upcast


def patches_of(images: Tensor, kernel: int) -> Tensor:
    """[B, k² + 1, L] the windows of images [B, H, W] in row-major order, and a row of ones."""
    patches: Tensor = _Patches.apply(images, kernel)  # type: ignore[no-untyped-call]
    return patches


def images_of(patches: Tensor, height: int, width: int, kernel: int) -> Tensor:
    """[B, H, W]: the backward pass of patches_of, windows [B, k² + 1, L] summed into images."""
    rows, columns = height - kernel + 1, width - kernel + 1
    taps = patches.view(len(patches), kernel**2 + 1, rows, columns).unbind(1)
    images = patches.new_zeros(len(patches), height, width)
    for i in range(kernel):
        below = images.narrow(1, i, rows)
        for j in range(kernel):
            below.narrow(2, j, columns).add_(taps[kernel * i + j])
    return images


def tap_moments(patches: Tensor) -> Tensor:
    """[K + 1, K + 1] the mean of p p' over images and positions; its last row is the mean of p."""
    moments: Tensor = _Moments.apply(patches)  # type: ignore[no-untyped-call]
    return moments


def channel_moments(moments: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance [C] of the outputs of filters [C, K], from the tap moments."""
    center = moments[-1, :-1]
    covariance = moments[:-1, :-1] - torch.outer(center, center)
    return filters @ center, ((filters @ covariance) * filters).sum(1)


def folded_filters(
    filters: Tensor, mean: Tensor, variance: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> Tensor:
    """[C, K + 1] filters with batch norm folded in; the last column meets the row of ones."""
    scale = gain * torch.rsqrt(variance + eps)
    return torch.cat([filters * scale[:, None], (shift - scale * mean)[:, None]], dim=1)


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: int) -> Tensor:
        ctx.shape, ctx.kernel = images.shape, kernel
        batch, height, width = images.shape
        rows, columns = height - kernel + 1, width - kernel + 1
        patches = images.new_empty(batch, kernel**2 + 1, rows, columns)
        windows = images.unfold(1, kernel, 1).unfold(2, kernel, 1).permute(0, 3, 4, 1, 2)
        patches[:, :-1].view(windows.shape).copy_(windows)
        patches[:, -1].fill_(1.0)
        return patches.flatten(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        _, height, width = ctx.shape
        return images_of(grad, height, width, ctx.kernel), None


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, patches: Tensor) -> Tensor:
        ctx.save_for_backward(patches)
        with torch.autocast(patches.device.type, enabled=False):
            wide = upcast(patches)
            products = torch.bmm(wide, wide.transpose(1, 2))
        return products.sum(0) / (patches.shape[0] * patches.shape[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (patches,) = ctx.saved_tensors
        both = (grad + grad.T) / (patches.shape[0] * patches.shape[2])
        with torch.autocast(patches.device.type, enabled=False):
            grad_patches = torch.bmm(both.expand(len(patches), *both.shape), upcast(patches))
        return grad_patches.to(patches.dtype)

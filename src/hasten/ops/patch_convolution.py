"""Convolution of small one-channel images, batch norm, ReLU and channel dropout as one product.

With K = k² taps, p the patches of all images [M, K] and w the filters [C, K], batch norm over the
M outputs of each channel needs only the mean and the covariance of the patches:

    mean_c = w_c · m,   var_c = w_c' S w_c,   a_c = gain_c / sqrt(var_c + eps)
    y = relu(p (a w)' + (shift - a mean))

so that it costs a K×K matrix instead of passes over M×C values, and the product is taken once with
the folded filters. Statistics are float32; under bf16 the large product is taken in bf16. Outputs
are [B, places, C], and only they and the patches are kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def patches_of(images: Tensor, kernel: int) -> Tensor:
    """[B · (H-k+1) · (W-k+1), k²] the windows of images [B, H, W], in reading order."""
    patches: Tensor = _Patches.apply(images, kernel)  # type: ignore[no-untyped-call]
    return patches


def folded_filters(
    patches: Tensor, filters: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Filters [C, K] and shifts [C] with the batch norm over these patches folded in.

    Returns them with the mean and the (biased) variance of each channel.
    """
    centre = patches.mean(0)
    moment = patches.T @ patches / len(patches)
    covariance = moment - torch.outer(centre, centre)
    mean = filters @ centre
    variance = ((filters @ covariance) * filters).sum(1)
    scale = gain * torch.rsqrt(variance + eps)
    return filters * scale[:, None], shift - scale * mean, mean, variance


def rectified_products(
    patches: Tensor, filters: Tensor, shift: Tensor, keep: Tensor | None, places: int
) -> Tensor:
    """[B, places · C]: relu(patches @ filters' + shift), times ``keep`` [B, C] (or None).

    keep: a dropout mask, not negative, the same for all places of a channel.
    """
    dtype = patches.dtype
    if torch.is_autocast_enabled(patches.device.type):
        dtype = torch.get_autocast_dtype(patches.device.type)
    result: Tensor = _Rectified.apply(  # type: ignore[no-untyped-call]
        patches, filters, shift, keep, places, dtype
    )
    return result


def convolution_reference(
    images: Tensor,
    filters: Tensor,
    gain: Tensor,
    shift: Tensor,
    eps: float,
    keep: Tensor | None,
) -> Tensor:
    """The same as torch has it: conv2d, batch_norm, relu, product with the mask."""
    kernel = round(filters.shape[1] ** 0.5)
    y = F.conv2d(images[:, None], filters.view(-1, 1, kernel, kernel))
    y = torch.relu(F.batch_norm(y, None, None, gain, shift, training=True, eps=eps))
    if keep is not None:
        y = y * keep[:, :, None, None]
    return y.flatten(2).transpose(1, 2).reshape(len(images), -1)


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: int) -> Tensor:
        ctx.shape, ctx.kernel = images.shape, kernel
        windows = images.unfold(1, kernel, 1).unfold(2, kernel, 1)
        return windows.reshape(-1, kernel * kernel)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        batch, height, width = ctx.shape
        kernel = ctx.kernel
        rows, columns = height - kernel + 1, width - kernel + 1
        taps = grad.view(batch, rows, columns, kernel, kernel)
        images = grad.new_zeros(ctx.shape)
        for i in range(kernel):
            for j in range(kernel):
                images[:, i : i + rows, j : j + columns] += taps[..., i, j]
        return images, None


class _Rectified(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        patches: Tensor,
        filters: Tensor,
        shift: Tensor,
        keep: Tensor | None,
        places: int,
        dtype: torch.dtype,
    ) -> Tensor:
        low, low_filters = patches.to(dtype), filters.to(dtype)
        y = torch.addmm(shift.to(dtype), low, low_filters.T).relu_()
        channels = len(filters)
        if keep is not None:
            y.view(-1, places, channels).mul_(keep.to(dtype)[:, None])
        ctx.places = places
        ctx.save_for_backward(patches, filters, keep, y)
        return y.view(-1, places * channels)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        patches, filters, keep, y = ctx.saved_tensors
        inner = torch.ops.aten.threshold_backward(grad.reshape(y.shape), y, 0)
        if keep is not None:
            inner.view(-1, ctx.places, y.shape[1]).mul_(keep.to(y.dtype)[:, None])
        with torch.autocast(grad.device.type, enabled=False):
            grad_filters = inner.T @ patches.to(y.dtype)
            grad_patches = inner @ filters.to(y.dtype)
            grad_shift = inner.sum(0, dtype=torch.promote_types(torch.float32, y.dtype))
        return (
            grad_patches.to(patches.dtype),
            grad_filters.to(filters.dtype),
            grad_shift.to(filters.dtype),
            None,
            None,
            None,
        )

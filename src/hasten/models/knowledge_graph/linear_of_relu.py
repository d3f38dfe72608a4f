"""A linear map of ReLU(filters × patches), computed by blocks of channels.

    hidden_b = W vec(relu(f_b p_b)),   f_b = keep_b filters [C, K + 1],   p_b patches [K + 1, L]

Rectified products of patches (:mod:`.patch_convolution`), then a linear layer, for groups of images
with their own filters. The features relu(f p), C·L numbers per image, are the largest tensor
of a step of ConvE. They are computed and multiplied one block of channels at a time. With
``recompute``, the backward pass computes them again from the patches, which costs one small
product; otherwise the blocks are kept. Both use the same order of summation, so the results are
identical.

Under autocast, the large products are in lower precision and summed over blocks in float32. Patches
and features are kept in lower precision, and the weight is converted again for the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: channels per block, half of ConvE's; smaller blocks slow the products more than they save memory
BLOCK = 16


@dataclass(frozen=True, eq=False)
class ImageGroup:
    """Images that share filters.

    patches: [b, K + 1, L]. filters: [C, K + 1]. keep: [b, C] a non-negative dropout mask of whole
    channels, or None.
    """

    patches: Tensor
    filters: Tensor
    keep: Tensor | None


def linear_of_relu(groups: Sequence[ImageGroup], weight: Tensor, recompute: bool = False) -> Tensor:
    """[B, D]: relu(filters @ patches) times ``keep``, then times the weight, for all groups.

    weight: [D, C·L]. recompute: activation checkpointing of the features.
    """
    device, dtype = weight.device.type, weight.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    tensors = [tensor for group in groups for tensor in (group.patches, group.filters, group.keep)]
    result: Tensor = _RectifiedLinear.apply(  # type: ignore[no-untyped-call]
        weight, recompute, dtype, *tensors
    )
    return result


class _RectifiedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, recompute: bool, dtype: torch.dtype, *tensors: Tensor | None
    ) -> Tensor:
        groups, outputs = _groups(tensors), []
        lower = weight.to(dtype)  # for all groups
        hidden = weight.new_zeros(sum(len(group.patches) for group in groups), len(weight))
        first = 0
        with torch.autocast(weight.device.type, enabled=False):
            for group in groups:
                rows = hidden[first : first + len(group.patches)]
                for start, columns in _blocks(group):
                    y = _features(group, start).to(dtype)
                    if dtype == hidden.dtype:
                        rows.addmm_(y.flatten(1), lower[:, columns].T)
                    else:
                        rows += y.flatten(1) @ lower[:, columns].T
                    if not recompute:
                        outputs.append(y)
                first += len(rows)
        ctx.dtype, ctx.count = dtype, len(tensors)
        ctx.save_for_backward(weight, *tensors, *outputs)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *saved = ctx.saved_tensors
        saved_outputs = iter(saved[ctx.count :])
        grad_weight = torch.empty_like(weight)
        weight = weight.to(ctx.dtype)
        grads: list[Tensor | None] = []
        first = 0
        with torch.autocast(weight.device.type, enabled=False):
            for group in _groups(saved[: ctx.count]):
                patches, filters, keep = group.patches, group.filters, group.keep
                low = grad[first : first + len(patches)].to(ctx.dtype)
                kind, patches = patches.dtype, patches.to(filters.dtype)
                grad_patches, grad_filters = torch.empty_like(patches), torch.empty_like(filters)
                for start, columns in _blocks(group):
                    y = next(saved_outputs, None)
                    recompute = y is None
                    if y is None:
                        y = _features(group, start).to(ctx.dtype)
                    target = grad_weight[:, columns]
                    if ctx.dtype == grad.dtype:
                        torch.addmm(target, low.T, y.flatten(1), beta=int(first > 0), out=target)
                    else:
                        product = low.T @ y.flatten(1)
                        if first == 0:
                            target.copy_(product)
                        else:
                            target += product
                    inner = _through(y, low, weight[:, columns], recompute).to(filters.dtype)
                    masked = _masked(group, start).transpose(1, 2)
                    beta = int(start > 0)
                    torch.baddbmm(grad_patches, masked, inner, beta=beta, out=grad_patches)
                    each = torch.bmm(inner, patches.transpose(1, 2))
                    if keep is not None:
                        each *= keep[:, start : start + BLOCK, None]
                    grad_filters[start : start + BLOCK] = each.sum(0)
                grads += [grad_patches.to(kind), grad_filters, None]
                first += len(patches)
        return grad_weight, None, None, *grads


def _through(y: Tensor, low: Tensor, columns: Tensor, again: bool) -> Tensor:
    """[b, c, L] the gradient at the products, where these are positive.

    again: the features are ours alone, and their memory takes the gradient.
    """
    if not again:
        inner = (low @ columns).view_as(y)
        torch.ops.aten.threshold_backward.grad_input(inner, y, 0, grad_input=inner)
        return inner
    lost = y <= 0
    torch.mm(low, columns, out=y.view(len(y), -1))
    return y.masked_fill_(lost, 0.0)


def _groups(tensors: Sequence[Any]) -> list[ImageGroup]:
    return [ImageGroup(*tensors[i : i + 3]) for i in range(0, len(tensors), 3)]


def _blocks(group: ImageGroup) -> list[tuple[int, slice]]:
    """The first channel of each block, and its columns of the weight."""
    channels, places = len(group.filters), group.patches.shape[2]
    return [
        (start, slice(start * places, min(start + BLOCK, channels) * places))
        for start in range(0, channels, BLOCK)
    ]


def _features(group: ImageGroup, start: int) -> Tensor:
    """[b, c, L] the rectified products of the block of channels that begins at ``start``."""
    filters = _masked(group, start)
    return torch.bmm(filters, group.patches.to(filters.dtype)).relu_()


def _masked(group: ImageGroup, start: int) -> Tensor:
    """[b, c, K + 1] the block's filters for each image: those of dropped channels are zero."""
    block = group.filters[start : start + BLOCK]
    if group.keep is None:
        return block.expand(len(group.patches), *block.shape)
    return group.keep.to(block.dtype)[:, start : start + BLOCK, None] * block

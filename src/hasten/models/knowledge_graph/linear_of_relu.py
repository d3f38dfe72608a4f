"""A linear map of ReLU(filters × patches) of groups of images with their own filters.

    hidden_b = W vec(relu(f_b p_b)),   f_b = keep_b filters [C, K + 1],   p_b patches [K + 1, L]

Rectified products of patches (:mod:`.patch_convolution`), then a linear layer. The features
relu(f p), C·L numbers per image, are the largest tensors of a step of ConvE. With ``recompute``,
the backward pass computes them again from the patches, one group at a time, which costs one small
product; otherwise they are kept. The results are identical.

Under autocast, the large products are in lower precision. Patches and features are kept in lower
precision, and the weight is converted again for the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.ops.dense.product import product


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
        lower = weight.to(dtype)  # for all groups
        hidden, kept = [], []
        with torch.autocast(weight.device.type, enabled=False):
            for group in _groups(tensors):
                features = _features(group).to(dtype)
                hidden.append(product(features.flatten(1), lower.T).to(weight.dtype))
                if not recompute:
                    kept.append(features)
        ctx.dtype, ctx.count = dtype, len(tensors)
        ctx.save_for_backward(weight, *tensors, *kept)
        return hidden[0] if len(hidden) == 1 else torch.cat(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *saved = ctx.saved_tensors
        kept, groups = iter(saved[ctx.count :]), _groups(saved[: ctx.count])
        lower, grad_weight = weight.to(ctx.dtype), None
        grads: list[Tensor | None] = []
        with torch.autocast(weight.device.type, enabled=False):
            parts = torch.split(grad, [len(group.patches) for group in groups])
            for group, part in zip(groups, parts, strict=True):
                # features without another name here, so that _backward can free them
                grad_weight, *rest = _backward(
                    group, next(kept, None), part.to(ctx.dtype), lower, grad_weight, weight.dtype
                )
                grads += [*rest, None]
        return grad_weight, None, None, *grads


def _backward(
    group: ImageGroup,
    features: Tensor | None,
    grad: Tensor,
    weight: Tensor,
    grad_weight: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the weight, with those of the groups before, of the patches and filters.

    grad: [b, D]. features: of the forward pass, or None. dtype: of the weight's gradient.
    """
    patches, filters = group.patches.to(group.filters.dtype), _masked(group)
    recompute = features is None
    features = (_features(group).to(grad.dtype) if features is None else features).flatten(1)
    if grad_weight is None:
        grad_weight = product(grad.T, features).to(dtype)
    elif grad.dtype == dtype:  # in place: another [D, C·L] would be large
        grad_weight.addmm_(grad.T, features)
    else:
        grad_weight += grad.T @ features
    if recompute:
        inactive = features <= 0
        del features  # before the gradient, which is as large
        inner = product(grad, weight).masked_fill_(inactive, 0.0)
    else:  # faster than a mask, but the features stay
        inner = product(grad, weight)
        torch.ops.aten.threshold_backward.grad_input(inner, features, 0, grad_input=inner)
    inner = inner.view(len(filters), filters.shape[1], -1).to(filters.dtype)
    grad_patches = torch.bmm(filters.transpose(1, 2), inner)
    grad_filters = torch.bmm(inner, patches.transpose(1, 2))
    if group.keep is not None:
        grad_filters *= group.keep[:, :, None]
    return grad_weight, grad_patches.to(group.patches.dtype), grad_filters.sum(0)


def _groups(tensors: Sequence[Any]) -> list[ImageGroup]:
    return [ImageGroup(*tensors[i : i + 3]) for i in range(0, len(tensors), 3)]


def _features(group: ImageGroup) -> Tensor:
    """[b, C, L] the rectified products."""
    filters = _masked(group)
    return torch.bmm(filters, group.patches.to(filters.dtype)).relu_()


def _masked(group: ImageGroup) -> Tensor:
    """[b, C, K + 1] the filters for each image: those of dropped channels are zero."""
    if group.keep is None:
        return group.filters.expand(len(group.patches), *group.filters.shape)
    return group.keep.to(group.filters.dtype)[:, :, None] * group.filters

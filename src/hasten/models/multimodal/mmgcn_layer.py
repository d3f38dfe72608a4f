"""A layer of MMGCN for one modality, or for all at once (fewer kernel launches on a GPU).

After the first layer, every modality has nodes of the same width: their columns are adjacent, so
that one sparse product aggregates all, and the products with their matrices are batched.

Shapes: M modalities, S nodes, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.models.multimodal.modal_data import xavier
from hasten.ops.dense.linear import LinearMap, linear

_SLOPE = 0.01


class Layer(nn.Module):
    """W [K, K], V and b, G and c of one layer."""

    def __init__(self, entering: int, width: int, first: bool) -> None:
        super().__init__()
        self.spread = xavier(entering, entering)
        self.own = LinearMap(entering, width)
        self.mix = nn.Linear(entering + width, width)
        nn.init.xavier_normal_(self.own.weight)
        if first:  # the published code keeps nn.Linear's default in later layers
            nn.init.xavier_normal_(self.mix.weight)


@dataclass(frozen=True, eq=False)
class StackedLinear:
    """Linear layers of the same shape. weight: [M, O, D]; bias: [M, 1, O]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, layers: Sequence[nn.Linear]) -> StackedLinear:
        bias = torch.stack([each.bias for each in layers])
        return cls(torch.stack([each.weight for each in layers]), bias[:, None])

    def __call__(self, x: Tensor) -> Tensor:
        """[M, S, O] of x [M, S, D]."""
        return torch.baddbmm(self.bias, x, self.weight.mT)


@dataclass(frozen=True, eq=False)
class StackedLayer:
    """The parameters of a layer of all modalities. spread: [M, D, D]."""

    spread: Tensor
    own: StackedLinear
    mix: StackedLinear

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> StackedLayer:
        return cls(
            torch.stack([each.spread for each in layers]),
            StackedLinear.of([each.own for each in layers]),
            StackedLinear.of([each.mix for each in layers]),
        )


def mix_layer(
    summed: Tensor,
    node_rows: Tensor,
    ids: Tensor,
    layer: Layer | StackedLayer,
    varying: bool = False,
) -> Tensor:
    """``lrelu([H, X̂] G + c)``. summed: ``D⁻¹ A X W``; node_rows: ``X V + b``.

    varying: every batch has other nodes.
    """
    h = F.leaky_relu_(summed, _SLOPE)
    node_rows = F.leaky_relu_(node_rows, _SLOPE)
    node_rows = node_rows + ids.to(node_rows.dtype)
    if node_rows.device.type != "cpu" or isinstance(layer, StackedLayer):
        return F.leaky_relu_(layer.mix(torch.cat([h, node_rows], -1)), _SLOPE)
    # no copy of both
    width = h.shape[1]
    weight = layer.mix.weight
    multiply = partial(linear, varying=varying)
    mixed = multiply(h, weight[:, :width]) + multiply(node_rows, weight[:, width:], layer.mix.bias)
    return F.leaky_relu_(mixed, _SLOPE)


def split(x: Tensor, count: int) -> Tensor:
    """[M, S, D], a view of [S, M D]."""
    return x.view(len(x), count, -1).transpose(0, 1)


def joined(x: Tensor) -> Tensor:
    """[S, M D] of [M, S, D]."""
    return x.transpose(0, 1).flatten(1)

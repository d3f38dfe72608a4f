"""Layer norm of nodes that are sorted by type, with a gain and a shift for each type."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dtypes import autocast_dtype

#: gain and shift [D] of each type in a layer; empty: no layer norm
Norms = Sequence[tuple[Tensor, Tensor]]


def norms_of_layers(layers: int, gains: Tensor | None, shifts: Tensor | None) -> Sequence[Norms]:
    """The norms of each layer, from gains and shifts [layers, T, D], in autocast's precision."""
    if gains is None or shifts is None:
        return [()] * layers
    types = gains.shape[1]
    # one operation, and one backward, for all layers and types
    rows = (p.to(autocast_dtype(p)).flatten(0, 1).unbind() for p in (gains, shifts))
    pairs = list(zip(*rows, strict=True))
    return [pairs[types * n : types * (n + 1)] for n in range(layers)]


def typed_layer_norm(norms: Norms, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """[N, D] the normalized rows; sizes: of each type [T]. Without norms, x itself."""
    if not norms:
        return x
    if len(norms) == 1:
        return F.layer_norm(x, x.shape[1:], *norms[0])
    parts = zip(torch.split(x, list(sizes)), norms, strict=True)
    return torch.cat([F.layer_norm(part, part.shape[1:], *norm) for part, norm in parts])

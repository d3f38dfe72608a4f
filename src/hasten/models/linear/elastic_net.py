"""Non-negative elastic nets with known inner products: coordinate descent on many at a time."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_MAX_SWEEPS: Final = 1000


def nonnegative_elastic_nets(
    gram: Tensor, target: Tensor, l1: float, l2: float, tolerance: float
) -> Tensor:
    """[c, B] the weights w >= 0 of B problems with the least ``½ wᵀ(G + l2 I)w - (t - l1)ᵀ w``.

    gram: [c, c, B] the matrices G, symmetric and without negative elements; target: [c, B] t, inner
    products with what is predicted; where it is 0, so is the weight. Each coordinate is set to its
    optimum in turn, for all problems at once, until no weight changes by more than ``tolerance`` in
    a sweep over all coordinates.
    """
    weights, residual = torch.zeros_like(target), target - l1
    diagonal = gram.diagonal().T.contiguous()
    scale = 1 / (diagonal + l2).clamp(min=1e-12)
    for _ in range(_MAX_SWEEPS):
        before = weights.clone()
        for i in range(len(gram)):
            new = torch.addcmul(residual[i], diagonal[i], weights[i]).mul_(scale[i]).relu_()
            residual.addcmul_(gram[i], new - weights[i], value=-1)
            weights[i] = new
        if float((weights - before).abs().max()) <= tolerance:
            break
    return weights

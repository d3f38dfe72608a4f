"""Products of matrices with rows of length one, where these rows are a projection of features.

With constant features F [N, d], M [K, d], m [K], ``z = F Mᵀ + m`` and ``x = z / max(|z|, 1e-12)``,
for any W [O, K] ``x Wᵀ = (F (W M)ᵀ + W m) / max(|z|, 1e-12)``. Where d is smaller than K the right
side takes fewer operations, and its backward pass fewer again, because F needs no gradient: of z
only the lengths are taken. Counted for one W, forward and backward: ``4 N d (K + O)`` instead of
``4 N d K + 6 N K O``. The same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dense.linear import linear
from hasten.ops.dense.unit_rows import LEAST, unit_rows
from hasten.ops.dtypes import wide


def unit_projection(
    features: Tensor, weight: Tensor, bias: Tensor, matrices: Sequence[Tensor]
) -> list[Tensor]:
    """[N, O] for every matrix [O, K]: the rows of ``F Mᵀ + m``, made one long, through it.

    features: F [N, d], without gradient; weight: M [K, d]; bias: m [K].
    """
    z = linear(features, weight, bias)
    if features.shape[1] >= weight.shape[0]:
        x = unit_rows([z])
        return [linear(x, matrix) for matrix in matrices]
    length = torch.linalg.vector_norm(z.to(wide(z)), dim=1, keepdim=True)
    scale = 1 / length.clamp(min=LEAST)
    return [linear(features, matrix @ weight, matrix @ bias) * scale for matrix in matrices]


def unit_projection_reference(
    features: Tensor, weight: Tensor, bias: Tensor, matrices: Sequence[Tensor]
) -> list[Tensor]:
    """The same by the rows themselves."""
    x = F.normalize(features @ weight.T + bias, dim=1, eps=LEAST)
    return [x @ matrix.T for matrix in matrices]

"""Shallow embeddings: vectors of nodes that no layer changes (Hamilton 2020, chapter 3).

Attention makes the vectors of neighbors alike. A second embedding of each node, concatenated to the
output of the layers, tells them apart: scores are those of a bilinear model plus those of the graph
network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: embeddings are this many times their parameters, so that Adam changes them faster
SHALLOW_SCALE = 5.0
_STD = 0.1


def shallow_embeddings(nodes: int, width: int) -> nn.Parameter | None:
    """[N, width] parameters, normally distributed; None without width."""
    return nn.Parameter(torch.randn(nodes, width) * (_STD / SHALLOW_SCALE)) if width else None


def with_shallow(z: Tensor, shallow: nn.Parameter | None, rows: Tensor | slice | None) -> Tensor:
    """[S, D + width] vectors z [S, D] with the shallow embeddings of rows; None: of all nodes."""
    if shallow is None:
        return z
    embeddings = shallow if rows is None else shallow[rows]
    return torch.cat([z, (embeddings * SHALLOW_SCALE).to(z.dtype)], dim=1)

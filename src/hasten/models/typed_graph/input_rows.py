"""The rows of the input tables of each node of a typed graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.graph.node_types import NodeTypes


def input_rows(
    types: NodeTypes, nodes: Int64, widths: Sequence[int], *, embeddings: bool
) -> list[Tensor]:
    """Int64 [S] rows of these nodes (ascending), on the host.

    embeddings: a row is a node. widths: of given features by type, 0 without: a tensor for each
    type, of rows of its features, or of the own vectors of all types without. Else a row is a type.
    """
    if embeddings:
        return [torch.from_numpy(nodes)]
    bounds = np.searchsorted(nodes, types.offsets)
    if not widths:
        return [torch.from_numpy(np.repeat(np.arange(len(types)), np.diff(bounds)))]
    rows, embedding_rows = [], 0
    for number, (width, offset) in enumerate(zip(widths, types.offsets, strict=False)):
        index = nodes[bounds[number] : bounds[number + 1]] - offset
        rows.append(torch.from_numpy(index if width else index + embedding_rows))
        embedding_rows += 0 if width else int(types.sizes[number])
    return rows

"""A layer of HGT for all nodes, some at a time, without gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from hasten.models.typed_graph.hgt_layer import HGTLayer
from hasten.ops.graph.message_graph import MessageGraph
from hasten.ops.transfer import to_device


def blocks(count: int, size: int) -> list[slice]:
    """Ranges of at most ``size`` that cover ``count``."""
    return [slice(start, start + size) for start in range(0, count, size)]


def attend_in_blocks(
    layer: HGTLayer, graph: MessageGraph, x: Tensor, ranges: Sequence[slice]
) -> Iterator[tuple[Tensor, Sequence[int]]]:
    """The output of a layer for each range of nodes, and the number of its nodes of each type.

    x: [N, hidden] the inputs of all nodes.
    """
    nodes = np.arange(graph.nodes)
    keys_values = layer.keys_values(x, graph.sizes(nodes))
    for each in ranges:
        hop = to_device(graph.hop(nodes[each], everything=True).arranged(x.device), x.device)
        queries = layer.query(x[each], hop.own_sizes)
        yield layer.attend(hop.edges, x[each], hop.own_sizes, queries, keys_values), hop.own_sizes

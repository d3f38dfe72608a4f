"""The matrices of KGAT's layers, the nodes of a batch, and layers over sharded nodes.

With sharded nodes, each process computes a layer for its nodes. The last one is computed for the
nodes of the batch only, on all processes: their rows and the sums of their neighbors come from all
of them (:mod:`hasten.ops.graph.propagated_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.models.collaborative.aggregate import Aggregator, aggregate, mix
from hasten.ops.dense.normalized_rows import normalized_rows
from hasten.ops.dtypes import upcast
from hasten.ops.graph.graph_shard import GraphShard
from hasten.ops.graph.propagated_rows import RequestedNodes, propagated_rows
from hasten.ops.graph.spmm import SparseGraph
from hasten.ops.graph.spmm_rows import RowPositions, visits_all, with_neighbors
from hasten.ops.random import key, seed_device

#: the aggregator, the slope of the leaky ReLU and the probability of dropout
Mixing = tuple[Aggregator, float, float]


#: share of the nodes above which all nodes are computed: selecting them costs more than it saves
_MAX_NODE_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class BatchNodes:
    """The nodes of a batch: the outputs, and what the last layer reads to compute them.

    last_inputs: int64, the nodes that the last layer reads; None: all, or nearly all.
    """

    outputs: RowPositions
    last_inputs: Tensor | None

    @classmethod
    def of(cls, graph: SparseGraph, nodes: Tensor, layers: int) -> BatchNodes:
        """nodes: int64, distinct, on the host. layers: the number of layers."""
        outputs, most = RowPositions.of(graph, nodes), _MAX_NODE_SHARE * graph.shape[0]
        if layers == 1 or len(nodes) > most or visits_all(graph):
            return cls(outputs, None)
        inputs = with_neighbors(graph, nodes)
        return cls(outputs, None if len(inputs) > most else inputs)


class Layer(nn.Module):
    """The matrices of one aggregation."""

    def __init__(self, width: int, out: int, aggregator: Aggregator) -> None:
        super().__init__()
        entering = 2 * width if aggregator == "graphsage" else width
        self.first = nn.Linear(entering, out)
        self.second = nn.Linear(entering, out) if aggregator == "bi-interaction" else None
        for linear in self._linears:
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    @property
    def _linears(self) -> list[nn.Linear]:
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def matrices(self) -> list[tuple[Tensor, Tensor]]:
        return [(linear.weight, linear.bias) for linear in self._linears]


def joined(layers: Sequence[Tensor]) -> Tensor:
    """[S, D + D1 + ...] the vectors of nodes from their layers."""
    first, *later_layers = map(upcast, layers)
    unit = F.normalize if first.device.type == "cpu" else lambda x: normalized_rows([x])
    return torch.cat([first, *map(unit, later_layers)], dim=1)


def propagate_sharded(
    requested: RequestedNodes,
    part: GraphShard,
    x: Tensor,
    layers: Iterable[nn.Module],
    mixing: Mixing,
    seed: int | None,
    checkpointed: Callable[..., Any],
) -> Tensor:
    """[S, D + D1 + ...] the vectors of the requested nodes, on all processes. A collective.

    x: [R, D] layer 0 of the nodes of this process. seed: of dropout. checkpointed: calls a
    function, with activation checkpointing if it is on.
    """
    of_batch: list[Tensor] = []
    *inner, last = (cast(Layer, layer) for layer in layers)
    if seed is not None:  # the rows of each process have masks of their own
        seed_device(x.device, key(seed, part.shard.first))
    for layer in inner:
        picked, x = checkpointed(_own_layer, part, x, layer, mixing, requested.local)
        of_batch.append(upcast(picked))
    if of_batch:
        exchanged = requested.exchange(torch.cat(of_batch, 1))
        widths = [rows.shape[1] for rows in of_batch]
        of_batch = list(torch.split(exchanged, widths, 1))
    node_rows, neighbors = propagated_rows(part, x, requested, 1)
    if seed is not None:  # the rows of the batch have the same on all processes
        seed_device(x.device, seed)
    return joined([*of_batch, node_rows, mix(node_rows, neighbors, last.matrices, *mixing)])


def sharded_vectors(
    part: GraphShard, x: Tensor, layers: Iterable[nn.Module], mixing: Mixing
) -> Tensor:
    """[R, D + D1 + ...] the vectors of the nodes of this process. A collective."""
    found, none = [x], torch.empty(0, dtype=torch.int64, device=x.device)
    for layer in layers:
        found.append(_own_layer(part, found[-1], cast(Layer, layer), mixing, none)[1])
    return joined(found)


def _own_layer(
    part: GraphShard, x: Tensor, layer: Layer, mixing: Mixing, picked: Tensor
) -> tuple[Tensor, Tensor]:
    """The picked rows of x, and a layer for the nodes of this process. A collective."""
    return aggregate(part, None, x, picked, layer.matrices, *mixing)

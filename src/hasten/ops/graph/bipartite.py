"""The normalized user-item graph: its adjacency, and the user-to-item and item-to-user blocks.

Nodes are the N items, then the U users. Edges are the distinct training pairs in both directions,
without loops. The weight of an edge is 1 divided by the degree of the node that sums (``mean``:
``D⁻¹ A``), or by the root of the product of both degrees (``symmetric``: ``D^-1/2 A D^-1/2``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.interactions.clean import stable_order
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.spmm import EdgeWeights, SparseGraph, spmm


@dataclass(frozen=True, eq=False)
class WeightedGraph:
    """A fixed sparse matrix [M, N]: the places of its entries, and their values."""

    structure: SparseGraph
    weights: EdgeWeights

    def __matmul__(self, x: Tensor) -> Tensor:
        """[M, D]; see :func:`hasten.ops.graph.spmm.spmm`."""
        return spmm(self.structure, self.weights, x)

    def __len__(self) -> int:
        return len(self.structure)

    def to(self, like: Tensor) -> WeightedGraph:
        """Move to the device and dtype of a tensor."""
        values = self.weights.values.to(like)
        graph = self.structure.to(like.device)
        return WeightedGraph(graph, graph.weigh(values))

    def copied_to(self, other: WeightedGraph) -> WeightedGraph:
        """The same graph in the memory of another with as many rows, columns and entries."""
        graph, weights = other.structure, other.weights
        for name in ("offsets", "columns", "offsets_t", "columns_t", "order_t"):
            getattr(graph, name).copy_(getattr(self.structure, name))
        weights.values.copy_(self.weights.values)
        weights.transposed.copy_(self.weights.transposed)
        bounds, columns = self.structure.bounds, self.structure.host_columns
        return WeightedGraph(replace(graph, bounds=bounds, host_columns=columns), weights)

    @classmethod
    def of(
        cls,
        row: Int64,
        column: Int64,
        values: NDArray[np.float64],
        shape: tuple[int, int],
    ) -> WeightedGraph:
        """From entries sorted by row."""
        graph = SparseGraph.build(row, column, *shape)
        return cls(graph, graph.weigh(torch.from_numpy(values)))


@dataclass(frozen=True, eq=False)
class Bipartite:
    """The user-item graph. adjacency: [N + U, N + U]; to_users: [U, N]; to_items: [N, U]."""

    adjacency: WeightedGraph
    to_users: WeightedGraph
    to_items: WeightedGraph

    @classmethod
    def build(cls, pairs: CSR, items: int, normalized: Literal["mean", "symmetric"]) -> Bipartite:
        """From the distinct items of each user."""
        users = len(pairs)
        user, item = pairs.rows, pairs.items
        order = stable_order(item, items)
        by_item = (item[order], user[order])
        degree_u = np.maximum(np.bincount(user, minlength=users), 1).astype(np.float64)
        degree_i = np.maximum(np.bincount(item, minlength=items), 1).astype(np.float64)
        if normalized == "mean":
            for_users, for_items = 1 / degree_u[user], 1 / degree_i[by_item[0]]
        else:
            both = 1 / np.sqrt(degree_u[user] * degree_i[item])
            for_users, for_items = both, both[order]
        return cls(
            WeightedGraph.of(
                np.concatenate([by_item[0], user + items]),
                np.concatenate([by_item[1] + items, item]),
                np.concatenate([for_items, for_users]),
                (items + users, items + users),
            ),
            WeightedGraph.of(user, item, for_users, (users, items)),
            WeightedGraph.of(*by_item, for_items, (items, users)),
        )

    def to(self, like: Tensor) -> Bipartite:
        """Move to the device and dtype of a tensor."""
        return Bipartite(self.adjacency.to(like), self.to_users.to(like), self.to_items.to(like))

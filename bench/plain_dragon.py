"""The plain DRAGON, written from the equations, with torch's CSR products.

Both modalities are propagated side by side, in Horner's form. The graphs of similar users and items
are applied for the nodes of the batch alone. The graphs themselves are given to it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.plain_graph import SparseMatrix, sum_of_powers
from hasten.data.tables import Dataset
from hasten.models.multimodal.modal_data import features_of, training_pairs
from hasten.models.multimodal.modal_graphs import item_graph, user_graph
from hasten.ops.graph.bipartite import WeightedGraph


class PlainDRAGON(nn.Module):
    """Both modalities, D 64."""

    def __init__(self, dataset: Dataset, width: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.items, users = len(dataset.items), len(dataset.users)
        count, pairs = self.items + users, training_pairs(dataset)
        user, item = torch.from_numpy(pairs.rows) + self.items, torch.from_numpy(pairs.items)
        row, column = torch.cat([user, item]), torch.cat([item, user])
        root = torch.bincount(row, minlength=count).float().rsqrt()
        self.matrix = SparseMatrix(row, column, root[row] * root[column], (count, count))
        chosen = dict(zip(dataset.modalities, (0.1, 0.9), strict=True))
        self.alike = _matrix(item_graph(chosen, 10))
        self.companions = _matrix(user_graph(pairs, self.items, 40))
        self.features = [features_of(modality) for modality in dataset.modalities]
        self.first = nn.ModuleList(nn.Linear(f.shape[1], hidden) for f in self.features)
        self.second = nn.ModuleList(nn.Linear(hidden, width) for _ in self.features)
        self.users = nn.ParameterList(
            nn.init.xavier_normal_(torch.empty(users, width)) for _ in self.features
        )
        self.shares = nn.Parameter(torch.full((users, len(self.features), 1), 0.5))

    def encode(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """[S, 2 D] of these users, and of these items."""
        parts = zip(self.features, self.first, self.second, self.users, strict=True)
        found = [
            F.normalize(torch.cat([second(F.leaky_relu(first(features))), own]))
            for features, first, second, own in parts
        ]
        of_items, of_users = sum_of_powers(self.matrix, torch.cat(found, 1), 2).tensor_split(
            [self.items]
        )
        each = of_users.view(len(of_users), len(found), -1)
        of_users = (each * self.shares).flatten(1)
        return (
            of_users[users] + self.companions.rows(users, of_users),
            of_items[items] + self.alike.rows(items, of_items),
        )

    def loss(self, user: Tensor, positive: Tensor, negative: Tensor, l2: float = 1e-3) -> Tensor:
        users, index_u = torch.unique(user, return_inverse=True)
        items, index_i = torch.unique(torch.cat([positive, negative]), return_inverse=True)
        of_users, of_items = self.encode(users, items)
        u, (i, j) = of_users[index_u], of_items[index_i].chunk(2)
        loss = F.softplus((u * (j - i)).sum(1)).mean() / math.log(2)
        penalty = torch.stack([p[user].square().mean() for p in self.users]).sum()
        return loss + l2 * (penalty + self.shares.square().mean())


def _matrix(graph: WeightedGraph) -> SparseMatrix:
    rows, columns = graph.structure.rows, graph.structure.columns.long()
    return SparseMatrix(rows, columns, graph.weights.values.float(), graph.structure.shape)

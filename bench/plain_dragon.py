"""The plain DRAGON: the formulation of message-passing code, written from the equations.

In every step each modality is propagated on its own by gather and scatter over all edges, and the
graphs of users and of items are applied to all of them: 40 rows gathered for every user [U, 40, D],
and a sparse COO product over the items. The graphs themselves are given to it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.plain_mmgcn import edges_of
from hasten.data.tables import Dataset
from hasten.models.multimodal.modal_data import training_pairs
from hasten.models.multimodal.modal_graphs import item_graph, user_graph
from hasten.ops.graph.bipartite import Weighted


class PlainDRAGON(nn.Module):
    """Both modalities, D 64."""

    def __init__(self, dataset: Dataset, width: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.items, self.count = len(dataset.items), len(dataset.users)
        self.edges = edges_of(dataset)
        degree = torch.bincount(self.edges[0], minlength=self.items + self.count).clamp(min=1)
        root = degree.float().rsqrt()
        self.norm = (root[self.edges[0]] * root[self.edges[1]])[:, None]
        chosen = dict(zip(dataset.modalities, (0.1, 0.9), strict=True))
        near = item_graph(chosen, 10)
        index = torch.stack([near.graph.rows, near.graph.columns.long()])
        values, shape = near.weights.values.float(), near.graph.shape
        self.alike = torch.sparse_coo_tensor(
            index, values, shape, is_coalesced=True, check_invariants=False
        )
        pairs = training_pairs(dataset)
        self.others, self.weights = _padded(user_graph(pairs, self.items, 40), 40)
        self.features = [torch.from_numpy(modality.values) for modality in dataset.modalities]
        self.first = nn.ModuleList(nn.Linear(f.shape[1], hidden) for f in self.features)
        self.second = nn.ModuleList(nn.Linear(hidden, width) for _ in self.features)
        self.users = nn.ParameterList(
            nn.init.xavier_normal_(torch.empty(self.count, width)) for _ in self.features
        )
        self.shares = nn.Parameter(torch.full((self.count, len(self.features), 1), 0.5))

    def _sum(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add_(
            0, self.edges[0], x[self.edges[1]] * self.norm.to(x.dtype)
        )

    def encode(self) -> tuple[Tensor, Tensor]:
        """[U, 2 D] and [N, 2 D] of all users and items."""
        found = []
        for features, first, second, users in zip(
            self.features, self.first, self.second, self.users, strict=True
        ):
            z = second(F.leaky_relu(first(features)))
            x = F.normalize(torch.cat([z, users]), dim=1)
            near = self._sum(x)
            found.append(x + near + self._sum(near))
        items = torch.cat([x[: self.items] for x in found], 1)
        of_users = torch.cat(
            [self.shares[:, m] * x[self.items :] for m, x in enumerate(found)], dim=1
        )
        with torch.autocast("cpu", enabled=False):  # sparse products have no backward pass in bf16
            items = items + torch.sparse.mm(self.alike, items.float())
        others = of_users[self.others]
        together = torch.matmul(self.weights.to(others.dtype)[:, None], others)[:, 0]
        return of_users + together, items

    def loss(self, user: Tensor, positive: Tensor, negative: Tensor, l2: float = 1e-3) -> Tensor:
        users, items = self.encode()
        u, i, j = users[user].float(), items[positive].float(), items[negative].float()
        loss = F.softplus((u * j).sum(1) - (u * i).sum(1)).mean() / math.log(2)
        penalty = torch.stack([(p[user] ** 2).mean() for p in self.users]).sum()
        return loss + l2 * (penalty + (self.shares**2).mean())


def _padded(graph: Weighted, k: int) -> tuple[Tensor, Tensor]:
    """Companions [U, k] and their weights, 0 where there are fewer."""
    rows, bounds = graph.graph.rows, torch.from_numpy(graph.graph.bounds)
    place = torch.arange(len(rows)) - bounds[rows]
    others = torch.zeros(graph.graph.shape[0], k, dtype=torch.int64)
    weights = torch.zeros(graph.graph.shape[0], k)
    others[rows, place] = graph.graph.columns.long()
    weights[rows, place] = graph.weights.values.float()
    return others, weights

"""The plain KGAT: the formulation that PyTorch ports share, written from the paper.

The whole graph is propagated for every batch of pairs by a sparse COO matrix, with every layer's
output normalised and concatenated for all nodes; in the translation phase each edge gathers its
relation's matrix [B, D, K]; the attention is computed relation by relation on gathered ends, and
softmaxed by ``torch.sparse.softmax``. Fused Adam on both sides.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.book_graph import BookGraph

LAYERS = (64, 32, 16)
L2 = 1e-5


class PlainKGAT(nn.Module):
    """Bi-interaction, D 64, layers 64, 32, 16, message dropout 0.1."""

    def __init__(self, data: BookGraph, width: int = 64) -> None:
        super().__init__()
        self.data, self.count = data, data.entities + data.users
        kinds = 2 * data.relations + 2
        self.nodes, self.relations = nn.Embedding(self.count, width), nn.Embedding(kinds, width)
        self.projections = nn.Parameter(torch.empty(kinds, width, width))
        for weight in (self.nodes.weight, self.relations.weight, self.projections):
            nn.init.xavier_uniform_(weight)
        widths = (width, *LAYERS)
        self.first = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, LAYERS, strict=False))
        self.second = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, LAYERS, strict=False))
        self.dropout = nn.Dropout(0.1)
        user = data.user + data.entities
        forth = np.zeros_like(user)
        head = np.concatenate([user, data.item, data.head, data.tail])
        tail = np.concatenate([data.item, user, data.tail, data.head])
        relation = np.concatenate(
            [forth, forth + 1, data.relation + 2, data.relation + 2 + data.relations]
        )
        self.head, self.relation, self.tail = map(torch.from_numpy, (head, relation, tail))
        self.attend()

    @torch.no_grad()
    def attend(self) -> None:
        """Attention of all edges, one relation after the other."""
        values = torch.empty(len(self.head))
        for kind in torch.unique(self.relation).tolist():
            of = torch.where(self.relation == kind)[0]
            matrix = self.projections[kind]
            head = self.nodes.weight[self.head[of]] @ matrix
            tail = self.nodes.weight[self.tail[of]] @ matrix
            values[of] = (tail * torch.tanh(head + self.relations.weight[kind])).sum(1)
        index = torch.stack([self.head, self.tail])
        matrix = torch.sparse_coo_tensor(index, values, (self.count, self.count))
        self.matrix = torch.sparse.softmax(matrix.coalesce(), dim=1)

    def encode(self) -> Tensor:
        """[nodes, 176] of all nodes."""
        x = self.nodes.weight
        found = [x]
        for first, second in zip(self.first, self.second, strict=True):
            sums = torch.sparse.mm(self.matrix, x)
            x = F.leaky_relu(first(x + sums), 0.2) + F.leaky_relu(second(x * sums), 0.2)
            x = self.dropout(x)
            found.append(F.normalize(x, dim=1))
        return torch.cat(found, 1)

    def pair_loss(self, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        vectors = self.encode()
        u, i, j = vectors[user + self.data.entities], vectors[positive], vectors[negative]
        loss = F.softplus((u * j).sum(1) - (u * i).sum(1)).mean()
        norms = sum(v.square().sum(1).mean() / 2 for v in (u, i, j))
        return loss + L2 * norms

    def translation_loss(self, edges: Tensor, other: Tensor) -> Tensor:
        relation = self.relation[edges]
        matrix, moved = self.projections[relation], self.relations(relation)
        ends = (self.nodes(n) for n in (self.head[edges], self.tail[edges], other))
        h, t, o = (torch.bmm(end[:, None], matrix)[:, 0] for end in ends)
        near, far = (h + moved - t).square().sum(1), (h + moved - o).square().sum(1)
        norms = sum(v.square().sum(1).mean() / 2 for v in (h, t, o, moved))
        return F.softplus(near - far).mean() + L2 * norms

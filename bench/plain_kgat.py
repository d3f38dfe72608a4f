"""The plain KGAT, written from the paper: torch's CSR products, and one product a relation.

The graph is propagated for every batch of pairs by CSR products with a stored transpose, the last
layer for the nodes of the batch alone, whose vectors alone are normalized. The translation phase
multiplies the rows of a relation together, the attention too, on edges that are sorted by relation
once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.plain_graph import SparseMatrix
from hasten.data.tables import Dataset
from hasten.ops.graph.collaborative_graph import CollaborativeGraph

L2 = 1e-5
#: edges whose attention is computed at once: three tables of 64 MB
_CHUNK = 1 << 18


class PlainKGAT(nn.Module):
    """Bi-interaction, message dropout 0.1, D 64."""

    def __init__(
        self, dataset: Dataset, layers: Sequence[int], width: int = 64, dropout: float = 0.1
    ) -> None:
        super().__init__()
        found = CollaborativeGraph.of(dataset)
        self.first_user, self.count, kinds = found.entities, found.nodes, found.relations
        self.shape = self.count, kinds
        self.nodes, self.relations = nn.Embedding(self.count, width), nn.Embedding(kinds, width)
        self.projections = nn.Parameter(torch.empty(kinds, width, width))
        for weight in (self.nodes.weight, self.relations.weight, *self.projections.data):
            nn.init.xavier_normal_(weight)
        widths = (width, *layers)
        self.first = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, layers, strict=False))
        self.second = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, layers, strict=False))
        self.dropout = nn.Dropout(dropout)
        edges = (found.head, found.relation, found.tail)
        self.head, self.relation, self.tail = map(torch.from_numpy, edges)
        self.by_relation = self.relation.argsort(stable=True)
        self.sizes = torch.bincount(self.relation, minlength=kinds).tolist()
        self.values = torch.from_numpy(found.normalized())
        shape = (self.count, self.count)
        self.matrix = SparseMatrix(self.head, self.tail, self.values, shape)

    @torch.no_grad()
    def attend(self) -> None:
        """The attention of all edges: a softmax over those of a head."""
        logits = torch.empty(len(self.head))
        for kind, edges in enumerate(torch.split(self.by_relation, self.sizes)):
            matrix, moved = self.projections[kind], self.relations.weight[kind]
            for part in torch.split(edges, _CHUNK):
                head = torch.addmm(moved, self.nodes.weight[self.head[part]], matrix)
                tail = self.nodes.weight[self.tail[part]] @ matrix
                logits[part] = tail.mul_(head.tanh_()).sum(1)
        top = torch.full((self.count,), -torch.inf).scatter_reduce_(0, self.head, logits, "amax")
        shares = logits.sub_(top[self.head]).exp_()
        total = torch.zeros(self.count).index_add_(0, self.head, shares)
        self.values = shares / total[self.head]
        self.matrix.set_values(self.values)

    def encode(self, wanted: Tensor) -> Tensor:
        """[S, D + D1 + ...] the vectors of these nodes."""
        x = self.nodes.weight
        found = [x[wanted]]
        for number, (first, second) in enumerate(zip(self.first, self.second, strict=True), 1):
            if number < len(self.first):
                own, sums = x, self.matrix @ x
            else:
                own, sums = x[wanted], self.matrix.rows(wanted, x)
            mixed = F.leaky_relu(first(own + sums), 0.2) + F.leaky_relu(second(own * sums), 0.2)
            x = self.dropout(mixed)
            found.append(F.normalize(x[wanted] if number < len(self.first) else x))
        return torch.cat(found, 1)

    def pair_loss(self, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        nodes = torch.cat([user + self.first_user, positive, negative])
        wanted, index = torch.unique(nodes, return_inverse=True)
        u, i, j = self.encode(wanted)[index].chunk(3)
        loss = F.softplus((u * (j - i)).sum(1)).mean()
        norms = (u.square() + i.square() + j.square()).sum() / 2 / len(user)
        return loss + L2 * norms

    def translation_loss(
        self, head: Tensor, relation: Tensor, tail: Tensor, other: Tensor
    ) -> Tensor:
        """int64 [B] each, sorted by relation."""
        kinds, sizes = torch.unique_consecutive(relation, return_counts=True)
        rows = self.nodes(torch.stack([head, tail, other], 1)).flatten(0, 1)
        matrices = self.projections[kinds].unbind(0)
        parts = torch.split(rows, (3 * sizes).tolist())
        moved = torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])
        h, t, o = moved.view(len(head), 3, -1).unbind(1)
        r = self.relations(relation)
        near, far = (h + r - t).square().sum(1), (h + r - o).square().sum(1)
        norms = (moved.square().sum() + r.square().sum()) / 2 / len(head)
        loss: Tensor = F.softplus(near - far).mean() + L2 * norms
        return loss

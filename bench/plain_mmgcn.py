"""The plain MMGCN: the formulation of message-passing code, written from the equations.

In every step and modality the whole graph is propagated three times by gathering a row for every
edge and adding them up at its end; nothing is constant, and the last layer is computed for all
nodes. Ids and users are trained, as in hasten. The loss is the stable one: without it the
comparison would end in NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.data.tables import TRAIN, Dataset


class Gathered(nn.Module):
    """The mean over neighbours, by gather and scatter. edges: int64 [2, E], to and from."""

    def __init__(self, edges: Tensor, count: int) -> None:
        super().__init__()
        self.edges = edges
        self.degree = torch.bincount(edges[0], minlength=count).clamp(min=1).float()[:, None]

    def forward(self, x: Tensor) -> Tensor:
        messages = x[self.edges[1]]
        summed = torch.zeros_like(x).index_add_(0, self.edges[0], messages)
        return summed / self.degree.to(x.dtype)


def edges_of(dataset: Dataset) -> Tensor:
    """int64 [2, E] of the distinct training pairs in both directions, items first."""
    items = len(dataset.items)
    kept = dataset.part == TRAIN
    user = torch.from_numpy(dataset.interactions.user[kept]) + items
    item = torch.from_numpy(dataset.interactions.item[kept])
    pairs = torch.unique(torch.stack([user, item]), dim=1)
    return torch.cat([pairs, pairs.flip(0)], 1)


class PlainChannel(nn.Module):
    """One modality."""

    def __init__(self, features: Tensor, users: int, latent: int | None, width: int) -> None:
        super().__init__()
        self.features = features
        entering = latent or features.shape[1]
        self.project = nn.Linear(features.shape[1], latent) if latent else None
        self.users = nn.Parameter(nn.init.xavier_normal_(torch.empty(users, entering)))
        self.spread, self.own, self.mix = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for number in range(3):
            into = entering if number == 0 else width
            self.spread.append(nn.Linear(into, into, bias=False))
            self.own.append(nn.Linear(into, width))
            self.mix.append(nn.Linear(into + width, width))

    def forward(self, mean: Gathered, ids: Tensor) -> Tensor:
        items = self.features if self.project is None else self.project(self.features)
        x = F.normalize(torch.cat([items, self.users]), dim=1)
        for spread, own, mix in zip(self.spread, self.own, self.mix, strict=True):
            h = F.leaky_relu(mean(spread(x)))
            x_hat = F.leaky_relu(own(x)) + ids
            x = F.leaky_relu(mix(torch.cat([h, x_hat], 1)))
        return x


class PlainMMGCN(nn.Module):
    """Both modalities, D 64, the first projected to 256."""

    def __init__(self, dataset: Dataset, width: int = 64, latent: int = 256) -> None:
        super().__init__()
        self.items, users = len(dataset.items), len(dataset.users)
        self.mean = Gathered(edges_of(dataset), self.items + users)
        shape = torch.empty(self.items + users, width)
        self.ids = nn.Parameter(nn.init.xavier_normal_(shape))
        self.channels = nn.ModuleList(
            PlainChannel(
                torch.from_numpy(modality.values), users, None if number else latent, width
            )
            for number, modality in enumerate(dataset.modalities)
        )

    def encode(self) -> Tensor:
        """[N + U, D] of all nodes."""
        found = [channel(self.mean, self.ids) for channel in self.channels]
        return torch.stack(found).mean(0)

    def loss(self, user: Tensor, positive: Tensor, negative: Tensor, l2: float = 1e-4) -> Tensor:
        vectors, user = self.encode().float(), user + self.items
        u, i, j = vectors[user], vectors[positive], vectors[negative]
        loss = F.softplus((u * j).sum(1) - (u * i).sum(1)).mean()
        users = torch.stack([user, user], 1).view(-1)
        both = torch.stack([positive, negative], 1).view(-1)
        penalty = (self.ids[users] ** 2 + self.ids[both] ** 2).mean()
        first: Tensor = self.channels[0].users  # type: ignore[assignment]
        return loss + l2 * (penalty + (first**2).mean())

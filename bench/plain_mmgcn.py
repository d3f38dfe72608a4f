"""The plain MMGCN, written from the equations, with torch's CSR products.

Items and users are aggregated apart in the first layer, before or after the linear map, whichever
has fewer rows. What no step changes is computed once: features without a projection, and with
frozen ids the users. The last layer is computed for the nodes of the batch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.plain_graph import SparseMatrix
from hasten.data.tables import Dataset
from hasten.models.multimodal.modal_data import features_of, training_pairs


class MeanGraph:
    """The mean over neighbors: users over items, items over users, and both at once."""

    def __init__(self, dataset: Dataset) -> None:
        items, users = len(dataset.items), len(dataset.users)
        pairs = training_pairs(dataset)
        user, item = torch.from_numpy(pairs.rows), torch.from_numpy(pairs.items)
        of_user = 1 / torch.bincount(user, minlength=users).float()[user]
        of_item = 1 / torch.bincount(item, minlength=items).float()[item]
        self.to_users = SparseMatrix(user, item, of_user, (users, items))
        self.to_items = SparseMatrix(item, user, of_item, (items, users))
        row, column = torch.cat([item, user + items]), torch.cat([user + items, item])
        both = torch.cat([of_item, of_user])
        self.whole = SparseMatrix(row, column, both, (items + users, items + users))


def spread(matrix: SparseMatrix, x: Tensor, linear: nn.Linear) -> Tensor:
    """``A X W``, the linear map on the side with fewer rows."""
    rows, columns = matrix.shape
    found: Tensor = linear(matrix @ x) if rows <= columns else matrix @ linear(x)
    return found


class PlainLayer(nn.Module):
    def __init__(self, entering: int, width: int) -> None:
        super().__init__()
        self.spread = nn.Linear(entering, entering, bias=False)
        self.own = nn.Linear(entering, width)
        self.mix = nn.Linear(entering + width, width)

    def forward(self, summed: Tensor, own: Tensor, ids: Tensor) -> Tensor:
        """summed: ``D⁻¹ A X W``; own: the rows themselves, through their linear map."""
        h, x_hat = F.leaky_relu(summed), F.leaky_relu(own) + ids
        return F.leaky_relu(self.mix(torch.cat([h, x_hat], 1)))


class PlainChannel(nn.Module):
    """One modality."""

    def __init__(
        self, features: Tensor, graph: MeanGraph, latent: int | None, width: int, frozen: bool
    ) -> None:
        super().__init__()
        self.graph, self.features, self.frozen = graph, features, frozen
        entering = latent or features.shape[1]
        self.project = nn.Linear(features.shape[1], latent) if latent else None
        users = nn.init.xavier_normal_(torch.empty(graph.to_users.shape[0], entering))
        self.users = nn.Parameter(users, requires_grad=not frozen)
        self.layers = nn.ModuleList(
            PlainLayer(entering if number == 0 else width, width) for number in range(3)
        )
        self.keep_constants()

    @torch.no_grad()
    def keep_constants(self) -> None:
        """Compute what no step changes."""
        if self.project is None:
            self.items = F.normalize(self.features)
            self.items_summed = self.graph.to_users @ self.items
        if self.frozen:
            self.constant_users = F.normalize(self.users)
            self.users_summed = self.graph.to_items @ self.constant_users

    def _first(self, ids: Tensor) -> Tensor:
        layer = cast(PlainLayer, self.layers[0])
        if self.project is None:
            items, for_users = self.items, layer.spread(self.items_summed)
        else:
            items = F.normalize(self.project(self.features))
            for_users = spread(self.graph.to_users, items, layer.spread)
        if self.frozen:
            users, for_items = self.constant_users, layer.spread(self.users_summed)
        else:
            users = F.normalize(self.users)
            for_items = spread(self.graph.to_items, users, layer.spread)
        own = torch.cat([layer.own(items), layer.own(users)])
        return layer(torch.cat([for_items, for_users]), own, ids)  # type: ignore[no-any-return]

    def forward(self, ids: Tensor, wanted: Tensor) -> Tensor:
        x = self._first(ids)
        second, last = cast(Sequence[PlainLayer], self.layers)[1:]
        x = second(second.spread(self.graph.whole @ x), second.own(x), ids)
        summed = last.spread(self.graph.whole.rows(wanted, x))
        found: Tensor = last(summed, last.own(x[wanted]), ids[wanted])
        return found


class PlainMMGCN(nn.Module):
    """All modalities, D 64, the first projected to 256. frozen: ids and users are not trained."""

    def __init__(
        self, dataset: Dataset, width: int = 64, latent: int = 256, frozen: bool = False
    ) -> None:
        super().__init__()
        self.items, users = len(dataset.items), len(dataset.users)
        graph = MeanGraph(dataset)
        ids = nn.init.xavier_normal_(torch.empty(self.items + users, width))
        self.ids = nn.Parameter(ids, requires_grad=not frozen)
        self.frozen = frozen
        self.channels = nn.ModuleList(
            PlainChannel(features_of(modality), graph, None if number else latent, width, frozen)
            for number, modality in enumerate(dataset.modalities)
        )

    def encode(self, wanted: Tensor) -> Tensor:
        """[S, D] of these nodes."""
        return torch.stack([channel(self.ids, wanted) for channel in self.channels]).mean(0)

    def loss(self, user: Tensor, positive: Tensor, negative: Tensor, l2: float = 1e-4) -> Tensor:
        nodes = torch.cat([user + self.items, positive, negative])
        wanted, index = torch.unique(nodes, return_inverse=True)
        u, i, j = self.encode(wanted)[index].chunk(3)
        loss = F.softplus((u * (j - i)).sum(1)).mean()
        if self.frozen:
            return loss
        user_norm, i, j = (self.ids[part].square() for part in nodes.chunk(3))
        first: Tensor = self.channels[0].users  # type: ignore[assignment]
        return loss + l2 * ((user_norm + (i + j) / 2).mean() + first.square().mean())

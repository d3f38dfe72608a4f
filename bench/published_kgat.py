"""KGAT-pytorch from the user's clone (``KGAT_PYTORCH=DIR``): its model on our graph, as it is.

Its loader reads the graph row by row and does not run on Python 3.11, so it is given the batches of
the plain side; its attention is computed without gradients, which it does not need.
"""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.plain_kgat import L2
from hasten.data.tables import Dataset
from hasten.ops.graph.collaborative_graph import CollaborativeGraph


class PublishedKGAT(nn.Module):
    """The losses and the attention of the clone's model."""

    def __init__(self, folder: Path, dataset: Dataset, layers: Sequence[int]) -> None:
        super().__init__()
        sys.path.insert(0, str(folder))
        models: Any = importlib.import_module("model.KGAT")
        found = CollaborativeGraph.of(dataset)
        self.entities, edges = found.entities, (found.head, found.relation, found.tail)
        self.head, self.relation, self.tail = map(torch.from_numpy, edges)
        self.kinds = torch.unique(self.relation).tolist()
        self.shape = found.nodes, found.relations
        graph = torch.sparse_coo_tensor(
            torch.stack([self.head, self.tail]),
            torch.from_numpy(found.normalized()),
            (found.nodes, found.nodes),
            check_invariants=False,
        ).coalesce()
        settings = Namespace(
            use_pretrain=0,
            embed_dim=64,
            relation_dim=64,
            aggregation_type="bi-interaction",
            conv_dim_list=str(list(layers)),
            mess_dropout=str([0.1] * len(layers)),
            kg_l2loss_lambda=L2,
            cf_l2loss_lambda=L2,
        )
        users = found.nodes - found.entities
        self.model = models.KGAT(settings, users, found.entities, found.relations, graph)

    @torch.no_grad()
    def attend(self) -> None:
        self.model(self.head, self.tail, self.relation, self.kinds, mode="update_att")

    def pair_loss(self, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        loss: Tensor = self.model(user + self.entities, positive, negative, mode="train_cf")
        return loss

    def translation_loss(
        self, head: Tensor, relation: Tensor, tail: Tensor, other: Tensor
    ) -> Tensor:
        loss: Tensor = self.model(head, relation, tail, other, mode="train_kg")
        return loss

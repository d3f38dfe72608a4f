"""The scores of knowledge graph models as modules of tensors alone, for torch.export and ONNX.

Inputs: ``entity`` and ``relation``, int64 [B]. ``relation`` r asks for the tails of (entity, r, ?),
r + R of R relations for the heads of (?, r, entity). Output: ``scores`` [B, E] of all entities.

Shapes: B queries, E entities, D width, C channels, K taps of a filter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.models.knowledge_graph.conve import EPS, ConvE
from hasten.models.knowledge_graph.factorized import FactorizedTripleModel
from hasten.models.knowledge_graph.rotate import RotatE
from hasten.models.typed_graph.hgt import HGT
from hasten.ops.dense.group_moments import normalize


class TripleGraph(nn.Module):
    """Scores ``q(h, r) · e_t + b_t``."""

    inputs = ("entity", "relation")
    outputs = ("scores",)

    def __init__(self, model: FactorizedTripleModel | RotatE) -> None:
        super().__init__()
        self.model: Any = model.eval()

    def forward(self, entity: Tensor, relation: Tensor) -> Tensor:
        model = self.model
        vectors = self.vectors(model.entities.rows(entity), relation)
        scores: Tensor = vectors @ model.entities.weight.T + model.bias
        return with_self_scores(scores, entity, model.self_scores(relation))

    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        """[B, D] q(h, r)."""
        found: Tensor = self.model.vectors(entity_BD, relation)
        return found


class ConvEGraph(TripleGraph):
    """ConvE with PyTorch's convolution."""

    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        model: ConvE = self.model
        moments, kernel = model.image_moments, model.options.kernel
        image = normalize(model.image(entity_BD, relation), moments.mean, moments.variance, EPS)
        filters = model.folded(model.feature_moments.mean, model.feature_moments.variance)
        taps = filters[:, :-1].reshape(-1, 1, kernel, kernel)
        features = torch.relu(F.conv2d(image[:, None], taps, filters[:, -1]))
        hidden, moments = model.hidden(features.flatten(1)), model.hidden_moments
        hidden = normalize(hidden, moments.mean, moments.variance, EPS)
        return torch.relu(hidden * model.hidden_gain + model.hidden_shift)


class RotatEGraph(TripleGraph):
    """RotatE: a margin minus distances, with a tensor [B, E, D]."""

    def forward(self, entity: Tensor, relation: Tensor) -> Tensor:
        model: RotatE = self.model
        tails = model.entities.rows(self.all(model))
        scores = model.closeness(model.rotated(entity, relation), tails)
        return with_self_scores(scores, entity, model.self_scores(relation))

    def all(self, model: RotatE) -> Tensor:
        """The indices of all entities."""
        return torch.arange(model.sizes.entities, device=model.device)


class HGTGraph(nn.Module):
    """HGT by the embeddings of its nodes; the graph itself is not exported."""

    inputs = ("entity", "relation")
    outputs = ("scores",)

    def __init__(self, model: HGT) -> None:
        super().__init__()
        relations = model.relations
        self.nodes = nn.Buffer(model.embed())
        ones = torch.ones(model.sizes.relations, self.nodes.shape[1])
        scale = model.options.width**-0.5
        self.relations = nn.Buffer((ones if relations is None else relations.detach()) * scale)
        self.bias = nn.Buffer(model.bias.detach().clone())
        every = torch.arange(model.sizes.relations, device=model.device)
        self_scores = model.self_scores(every)
        self.self_scores = None if self_scores is None else nn.Buffer(self_scores.detach().clone())

    def forward(self, entity: Tensor, relation: Tensor) -> Tensor:
        one_way = relation % self.relations.shape[0]
        vectors = self.nodes.index_select(0, entity) * self.relations.index_select(0, one_way)
        scores = vectors @ self.nodes.T + self.bias.index_select(0, one_way)[:, None]
        if self.self_scores is None:
            return scores
        return with_self_scores(scores, entity, self.self_scores.index_select(0, one_way))


def with_self_scores(scores: Tensor, entity: Tensor, added: Tensor | None) -> Tensor:
    """Scores [B, E] with ``added`` [B] on those of the entities [B] with themselves."""
    if added is None:
        return scores
    itself = torch.arange(scores.shape[1], device=entity.device) == entity[:, None]
    return scores + itself * added[:, None]

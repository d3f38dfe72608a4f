"""TuckER: Tucker decomposition of the tensor of triples (Balazevic et al. 2019).

Score ``Σ_ijk W_ijk h_i r_j t_k + b_t`` with a core tensor W that all triples share. As in the
paper, batch norm and dropout of h, dropout of the matrix ``M_r = Σ_j r_j W_j``, then batch norm and
dropout of ``q = h M_r``. Differences: the bias b_t; batch norm over groups of ``group`` queries,
independent of the batch size.

Shapes: B queries, D width of entities, E width of relations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hasten.config import RunConfig, TrainingOptions
from hasten.data.tables import KnowledgeGraph
from hasten.models.data_size import DataSize, triple_loss
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.batch_norm_groups import check_groups, group_sizes
from hasten.models.knowledge_graph.factorized import FactorizedTripleModel
from hasten.models.knowledge_graph.triple_options import FactorizedTripleOptions, Rate
from hasten.models.search_space import Choice, Range
from hasten.models.supports import Supports
from hasten.objectives.base import Phase
from hasten.ops.dense.dropout import dropout
from hasten.ops.dense.group_moments import GroupMoments, normalize
from hasten.ops.dtypes import upcast
from hasten.ops.table import EmbeddingTable

EPS = 1e-5


class TuckEROptions(FactorizedTripleOptions):
    """Options of TuckER. The defaults are the paper's for FB15k-237."""

    name: Literal["tucker"] = "tucker"
    relation_width: int = Field(200, ge=1, description="embedding dimension of relations")
    input_dropout: Rate = Field(0.3, description="dropout rate of the entity")
    relation_dropout: Rate = Field(0.4, description="dropout rate of the matrix of the relation")
    hidden_dropout: Rate = Field(0.5, description="dropout rate of the query vector")
    group: int = Field(
        128, ge=2, description="queries that share BatchNorm statistics (ghost batch norm)"
    )


class TuckER(FactorizedTripleModel):
    """The model."""

    name = "tucker"
    summary = "Tucker decomposition with a shared core tensor (Balazevic et al. 2019)"
    Options = TuckEROptions
    supports = Supports()
    search = {
        "training.lr": Range(3e-4, 5e-3, log=True),
        "training.batch_size": Choice(64, 128, 256),
        "model.width": Choice(100, 200),
        "model.input_dropout": Range(0.1, 0.5),
        "model.relation_dropout": Range(0.1, 0.6),
        "model.hidden_dropout": Range(0.1, 0.6),
    }
    defaults = {**FactorizedTripleModel.defaults, "lr": 1e-3, "batch_size": 128}
    defaults_from_data = ("model.loss", "model.exclude_self")
    options: TuckEROptions

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """``loss=sampled`` for a graph with many entities, else ``1-n``."""
        return {"model.loss": triple_loss(size, config, "1-n"), "model.exclude_self": True}

    def __init__(self, options: TuckEROptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        width, relation_width = options.width, options.relation_width
        self.group = options.group
        self.relations = EmbeddingTable(2 * sizes.relations, relation_width)
        #: W: a matrix [D, D] for each dimension of a relation
        self.core = nn.Parameter(torch.empty(relation_width, width * width))
        nn.init.uniform_(self.core, -math.sqrt(3 / width), math.sqrt(3 / width))
        self.input_gain, self.hidden_gain = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.input_shift, self.hidden_shift = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.input_moments, self.hidden_moments = GroupMoments(width), GroupMoments(width)

    def phases(self, dataset: KnowledgeGraph, training: TrainingOptions) -> Sequence[Phase]:
        """One phase, see :meth:`TripleModel.phases`.

        Raises:
            ConfigurationError: the batch or micro-batch does not fit the BatchNorm groups.
        """
        check_groups(training, self.group)
        return super().phases(dataset, training)

    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        options, training, (batch, width) = self.options, self.training, entity_BD.shape
        head = self._normalized(entity_BD, self.input_moments) * self.input_gain + self.input_shift
        head = dropout(head, options.input_dropout, training)
        matrices = (self.relations.rows(relation) @ self.core).view(batch, width, width)
        matrices = dropout(matrices, options.relation_dropout, training)
        x_BD = upcast(torch.bmm(head[:, None].to(matrices.dtype), matrices)[:, 0])
        x_BD = self._normalized(x_BD, self.hidden_moments) * self.hidden_gain + self.hidden_shift
        return dropout(x_BD, options.hidden_dropout, training)

    def _normalized(self, x_BD: Tensor, moments: GroupMoments) -> Tensor:
        """Batch norm without gain and shift; in training each group has its own statistics."""
        if not self.training:
            return normalize(x_BD, moments.mean, moments.variance, EPS)
        parts = []
        for part in torch.split(x_BD, group_sizes(len(x_BD), self.group)):
            variance, mean = torch.var_mean(part, 0, correction=0)
            moments.add(mean.detach(), variance.detach(), len(part))
            parts.append(normalize(part, mean, variance, EPS))
        return torch.cat(parts)

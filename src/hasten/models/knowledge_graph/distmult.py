"""DistMult: three-way products of embeddings (Yang et al. 2015).

``q(h, r) = e_h ∘ e_r``, score ``q · e_t + b_t``. Unlike the original, queries for heads use a
separate embedding of the reciprocal relation. The score of each direction is symmetric in head and
tail up to the bias.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from hasten.models.knowledge_graph.base import (
    LOSS_DESCRIPTION,
    METRICS,
    FactorizedTripleModel,
    Loss,
    Share,
    TripleOptions,
)
from hasten.ops.dense.dropout import dropout


class DistMultOptions(TripleOptions):
    """Options of DistMult."""

    name: Literal["distmult"] = "distmult"
    loss: Loss = Field("1vsall", description=LOSS_DESCRIPTION)
    dropout: Share = Field(0.3, description="dropout rate of e_h * e_r")


class DistMult(FactorizedTripleModel):
    """The model."""

    name = "distmult"
    summary = "bilinear score with a diagonal matrix per relation (Yang et al. 2015)"
    Options = DistMultOptions
    defaults = {"lr": 1e-3, "batch_size": 512, "evaluation.metrics": METRICS}

    options: DistMultOptions

    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        product = entity_BD * self.relations.rows(relation)
        return dropout(product, self.options.dropout, self.training)

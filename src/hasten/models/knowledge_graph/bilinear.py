"""Base class of models whose query vector is a product of two embeddings."""

from __future__ import annotations

from abc import abstractmethod

from pydantic import Field
from torch import Tensor

from hasten.models.knowledge_graph.base import (
    LOSS_DESCRIPTION,
    METRICS,
    FactorizedTripleModel,
    Loss,
    Rate,
    TripleOptions,
)
from hasten.ops.dense.dropout import dropout


class BilinearOptions(TripleOptions):
    """Options of the product models."""

    loss: Loss = Field("1vsall", description=LOSS_DESCRIPTION)
    dropout: Rate = Field(0.3, description="dropout rate of e_h * e_r")


class BilinearModel(FactorizedTripleModel):
    """``q(h, r) = compose(e_h, e_r)``, then dropout. A subclass defines :meth:`compose`."""

    defaults = {"lr": 1e-3, "batch_size": 512, "evaluation.metrics": METRICS}
    options: BilinearOptions

    @staticmethod
    @abstractmethod
    def compose(head: Tensor, relation: Tensor) -> Tensor:
        """[B, D] products of rows [B, D]."""

    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        product = self.compose(entity_BD, self.relations.rows(relation))
        return dropout(product, self.options.dropout, self.training)

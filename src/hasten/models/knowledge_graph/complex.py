"""ComplEx: complex-valued embeddings (Trouillon et al. 2016).

Score ``Re(Σ h_k r_k conj(t_k))``. A vector holds the real parts, then the imaginary parts:
``q = [h_re r_re − h_im r_im, h_re r_im + h_im r_re]``, and the score is ``q · [t_re, t_im]``.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, field_validator
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


class ComplExOptions(TripleOptions):
    """Options of ComplEx."""

    name: Literal["complex"] = "complex"
    loss: Loss = Field("1vsall", description=LOSS_DESCRIPTION)
    dropout: Share = Field(0.3, description="dropout rate of e_h * e_r")

    @field_validator("width")
    @classmethod
    def _two_halves(cls, width: int) -> int:
        if width % 2:
            raise ValueError(f"width {width}: real and imaginary halves need an even number")
        return width


class ComplEx(FactorizedTripleModel):
    """The model."""

    name = "complex"
    summary = "bilinear score of complex embeddings (Trouillon et al. 2016)"
    Options = ComplExOptions
    defaults = {"lr": 1e-3, "batch_size": 512, "evaluation.metrics": METRICS}

    options: ComplExOptions

    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        h_re, h_im = entity_BD.chunk(2, dim=1)
        r_re, r_im = self.relations.rows(relation).chunk(2, dim=1)
        product = torch.cat([h_re * r_re - h_im * r_im, h_re * r_im + h_im * r_re], dim=1)
        return dropout(product, self.options.dropout, self.training)

"""DistMult: three-way products of embeddings (Yang et al. 2015).

``q(h, r) = e_h ∘ e_r``, score ``q · e_t + b_t``. Unlike the original, queries for heads use a
separate embedding of the reciprocal relation. The score of each direction is symmetric in head and
tail up to the bias.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from hasten.models.knowledge_graph.bilinear import BilinearModel, BilinearOptions


class DistMultOptions(BilinearOptions):
    """Options of DistMult."""

    name: Literal["distmult"] = "distmult"


class DistMult(BilinearModel):
    """The model."""

    name = "distmult"
    summary = "bilinear score with a diagonal matrix per relation (Yang et al. 2015)"
    Options = DistMultOptions

    @staticmethod
    def compose(head: Tensor, relation: Tensor) -> Tensor:
        return head * relation

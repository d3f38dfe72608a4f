"""Backward passes through the encoders of knowledge-graph models, term by term.

A model encodes the query (e, r) as x = q(E_e, R_r). From the gradient of x for each loss term, an
encoder computes the gradients of the two rows and of its own parameters, separately for each of n
terms, k of them with row gradients. Encoders: :class:`BilinearEncoder` and
:class:`hasten.influence.convolution.ConvEEncoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.influence.factors import Linear, per_term
from hasten.models.knowledge_graph.bilinear import BilinearModel


@dataclass(frozen=True)
class EncoderGradients:
    """Gradients of single terms: of their rows [k, D], and of the encoder's parameters."""

    head_grads: Tensor
    relation_grads: Tensor
    linears: Sequence[Linear] = ()
    small: Tensor | None = None


Rows = tuple[Tensor, Tensor]


class BilinearEncoder:
    """x = compose(E_e, R_r), without parameters of its own: DistMult and ComplEx."""

    def __init__(self, model: BilinearModel) -> None:
        self.model = model

    def floats(self) -> tuple[int, int, int]:
        """Numbers in memory, at most: per query, per term, and kept in the factors of a term."""
        width = self.model.entities.block(0, 1).shape[1]
        return 3 * width, 6 * width, 2 * width

    def forward(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, Rows]:
        """[m, D] vectors of int64 [m] entities and relations, and the state for backward."""
        rows = self.model.entities.rows(entity), self.model.relations.rows(relation)
        return self.model.compose(*rows), rows

    def backward(
        self, state: Rows, grads: Tensor, query: Tensor | None, terms: Tensor | None
    ) -> EncoderGradients:
        """Gradients from those of the vectors, [n, D].

        query: int64 [n] the query of each term; terms: int64 [k]; None as in ``Factors`` and
        ``RowGradients``.
        """
        head, relation = (per_term(per_term(rows, query), terms).detach() for rows in state)
        # every vector depends on its own two rows alone, so one backward pass serves all terms
        backward = torch.func.vjp(self.model.compose, head, relation)[1]
        return EncoderGradients(*backward(per_term(grads, terms)))

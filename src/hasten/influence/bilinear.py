"""DistMult and ComplEx backwards: their vectors are bilinear in the two rows."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.influence.body import Backward, spread
from hasten.models.knowledge_graph.complex import ComplEx
from hasten.models.knowledge_graph.distmult import DistMult

Rows = tuple[Tensor, Tensor]


class DistMultBody:
    """x = h ∘ r."""

    def __init__(self, model: DistMult) -> None:
        self.model = model

    def floats(self) -> tuple[int, int]:
        width = self.model.options.width
        return 3 * width, 4 * width

    def kept(self) -> int:
        return 2 * self.model.options.width

    def forward(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, Rows]:
        rows = self.model.entities.rows(entity), self.model.relations.rows(relation)
        return rows[0] * rows[1], rows

    def backward(
        self, state: Rows, slopes: Tensor, of: Tensor | None, at: Tensor | None
    ) -> Backward:
        heads, relations = (_rows(rows, of, at) for rows in state)
        slopes = spread(slopes, at)
        return Backward(slopes * relations, slopes * heads)


class ComplExBody:
    """x = h · r, complex, real and imaginary halves side by side."""

    def __init__(self, model: ComplEx) -> None:
        self.model = model

    def floats(self) -> tuple[int, int]:
        width = self.model.options.width
        return 3 * width, 4 * width

    def kept(self) -> int:
        return 2 * self.model.options.width

    def forward(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, Rows]:
        rows = self.model.entities.rows(entity), self.model.relations.rows(relation)
        return _times(*rows), rows

    def backward(
        self, state: Rows, slopes: Tensor, of: Tensor | None, at: Tensor | None
    ) -> Backward:
        heads, relations = (_rows(rows, of, at) for rows in state)
        slopes = spread(slopes, at)
        # the adjoint of a complex product is the product with the conjugate
        return Backward(_times(slopes, _conjugate(relations)), _times(slopes, _conjugate(heads)))


def _rows(rows: Tensor, of: Tensor | None, at: Tensor | None) -> Tensor:
    return spread(rows, of if at is None else at if of is None else of[at])


def _times(a: Tensor, b: Tensor) -> Tensor:
    a_re, a_im = a.chunk(2, dim=1)
    b_re, b_im = b.chunk(2, dim=1)
    return torch.cat([a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re], dim=1)


def _conjugate(a: Tensor) -> Tensor:
    re, im = a.chunk(2, dim=1)
    return torch.cat([re, -im], dim=1)

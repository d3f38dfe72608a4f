"""What stands between the rows that a question reads and its vector, backwards for each term.

A model of triples answers (e, r) by x = q(E_e, R_r). Given the gradient of x for each loss term, a
body says the gradients of the two rows and of its own parameters, term by term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from hasten.influence.factors import Linear


@dataclass(frozen=True)
class Backward:
    """Gradients of single terms: of rows [k, D] (those asked for), of the body's parameters."""

    heads: Tensor
    relations: Tensor
    linears: Sequence[Linear] = ()
    small: Tensor | None = None


class Body(Protocol):
    """A model's way from rows to vectors. m questions, n terms, k terms whose rows matter."""

    def floats(self) -> tuple[int, int]:
        """Numbers held at once for each question and each term: at most, roughly."""
        ...

    def kept(self) -> int:
        """Numbers that the factors of one term keep, beside vectors and residuals."""
        ...

    def forward(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, Any]:
        """[m, D] vectors of int64 [m] entities and relations, and what backward needs."""
        ...

    def backward(
        self, state: Any, slopes: Tensor, of: Tensor | None, at: Tensor | None
    ) -> Backward:
        """Gradients from those of the vectors, [n, D]; of, at: as in Factors and Inputs."""
        ...


def spread(rows: Tensor, of: Tensor | None) -> Tensor:
    """Rows of questions [m, ...] as rows of their terms [n, ...]."""
    return rows if of is None else rows.index_select(0, of)

"""ComplEx: complex-valued embeddings (Trouillon et al. 2016).

Score ``Re(Σ h_k r_k conj(t_k))``. A vector holds the real parts, then the imaginary parts:
``q = [h_re r_re − h_im r_im, h_re r_im + h_im r_re]``, and the score is ``q · [t_re, t_im]``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator
from torch import Tensor

from hasten.models.knowledge_graph.bilinear import BilinearModel, BilinearOptions
from hasten.ops.dense.complex_rows import complex_product, cubed_moduli


def even_width(width: int) -> int:
    """The width if it has two halves. Raises ValueError if not."""
    if width % 2:
        raise ValueError(f"width {width}: real and imaginary halves need an even number")
    return width


class ComplExOptions(BilinearOptions):
    """Options of ComplEx."""

    name: Literal["complex"] = "complex"

    _two_halves = field_validator("width")(even_width)


class ComplEx(BilinearModel):
    """The model."""

    name = "complex"
    summary = "bilinear score of complex embeddings (Trouillon et al. 2016)"
    Options = ComplExOptions

    @staticmethod
    def compose(head: Tensor, relation: Tensor) -> Tensor:
        return complex_product(head, relation)

    @staticmethod
    def cubes(rows: Tensor) -> Tensor:
        return cubed_moduli(rows)

    @staticmethod
    def compose_conjugate(head: Tensor, tail: Tensor) -> Tensor:
        return complex_product(head, tail, conjugate=True)

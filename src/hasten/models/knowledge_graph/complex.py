"""ComplEx: complex-valued embeddings (Trouillon et al. 2016).

Score ``Re(Σ h_k r_k conj(t_k))``. A vector holds the real parts, then the imaginary parts:
``q = [h_re r_re − h_im r_im, h_re r_im + h_im r_re]``, and the score is ``q · [t_re, t_im]``.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import field_validator
from torch import Tensor

from hasten.models.knowledge_graph.bilinear import BilinearModel, BilinearOptions


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
        h_re, h_im = head.chunk(2, dim=1)
        r_re, r_im = relation.chunk(2, dim=1)
        return torch.cat([h_re * r_re - h_im * r_im, h_re * r_im + h_im * r_re], dim=1)

    @staticmethod
    def conjugate(rows: Tensor) -> Tensor:
        real, imaginary = rows.chunk(2, dim=1)
        return torch.cat([real, -imaginary], dim=1)

    @staticmethod
    def cubes(rows: Tensor) -> Tensor:
        real, imaginary = rows.chunk(2, dim=1)
        return (real.square() + imaginary.square()).pow(1.5).sum(1)

"""Options of ConvE, and the shape of its images."""

from __future__ import annotations

import math
from itertools import count
from typing import Literal

from pydantic import Field, model_validator

from hasten.models.knowledge_graph.triple_options import FactorizedTripleOptions, Rate

#: the search for H and W would take too long above this width, which no memory holds anyway
MAX_WIDTH = 2**40


class ConvEOptions(FactorizedTripleOptions):
    """Options of ConvE. The defaults are the paper's."""

    name: Literal["conve"] = "conve"
    width: int = Field(200, ge=1, description="embedding dimension D")
    channels: int = Field(32, ge=1, description="number C of convolution filters")
    kernel: int = Field(3, ge=1, description="filters are k by k")
    height: int | None = Field(
        None, ge=1, description="rows H of a vector's image; none: as square as possible, H ≥ W"
    )
    input_dropout: Rate = Field(0.2, description="dropout rate of the image")
    feature_dropout: Rate = Field(0.2, description="dropout rate of whole channels")
    hidden_dropout: Rate = Field(0.3, description="dropout rate of the hidden vector")
    group: int = Field(
        128, ge=2, description="queries that share BatchNorm statistics (ghost batch norm)"
    )

    @model_validator(mode="after")
    def _has_a_shape(self) -> ConvEOptions:
        image_shape(self.width, self.kernel, self.height)
        return self


def image_shape(width: int, kernel: int = 3, height: int | None = None) -> tuple[int, int]:
    """H and W with H·W = width and H ≥ W ≥ kernel, as square as possible: 200 is 20×10.

    height: H, if it is given; then only W and 2H must be at least the kernel.

    Raises:
        ValueError: there are none (names the nearest widths that have one), or it is too large.
    """
    if width > MAX_WIDTH:
        raise ValueError(f"width {width}: one embedding needs {4 * width / 1e9:,.0f} GB of memory")

    if height is not None:
        if width % height or width // height < kernel or 2 * height < kernel:
            raise ValueError(
                f"height {height}: an image of H by W needs H W = {width} (the width), and W and "
                f"2H of at least {kernel} (the kernel)"
            )
        return height, width // height

    def find(number: int) -> tuple[int, int] | None:
        columns = range(math.isqrt(number), kernel - 1, -1)
        return next(((number // c, c) for c in columns if number % c == 0), None)

    shape = find(width)
    if shape is not None:
        return shape
    least = kernel**2
    below = next((n for n in range(width - 1, least - 1, -1) if find(n)), None)
    above = next(n for n in count(max(width + 1, least)) if find(n))
    near = f"{above}" if below is None else f"{below} or {above}"
    raise ValueError(
        f"width {width} is no product H W with both at least {kernel} (the kernel); the nearest "
        f"widths that are: {near}"
    )

"""ComplEx: complex-valued embeddings (Trouillon et al. 2016).

Score ``Re(Σ h_k r_k conj(t_k))``. A vector holds the real parts, then the imaginary parts:
``q = [h_re r_re − h_im r_im, h_re r_im + h_im r_re]``, and the score is ``q · [t_re, t_im]``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator
from torch import Tensor

from hasten.config import RunConfig
from hasten.models.data_size import DataSize, run_length, with_weight_average
from hasten.models.knowledge_graph.bilinear import (
    ENTITIES_TO_SAMPLE,
    BilinearModel,
    BilinearOptions,
)
from hasten.ops.dense.complex_rows import complex_product, cubed_moduli

#: the published settings are for graphs of at most so many entities, with so many triples for each
_MOST_ENTITIES, _FEWEST_TRIPLES = 20_000, 15
#: the published settings (Chen et al. 2021)
_PUBLISHED = {
    "model.width": 2000,
    "model.bias": False,
    "model.dropout": 0.0,
    "model.n3": 0.05,
    "model.relation_weight": 4.0,
}
#: their optimizer, Adagrad, as Adam without momentum
_ADAGRAD = {
    "training.lr": 0.1,
    "training.schedule": "inverse-sqrt",
    "training.betas": (0.0, 0.999999),
    "training.eps": 1e-12,
}
#: with one of these given, or weights to start from, the optimizer is Adam: Adagrad's learning rate
#: suits no other optimizer, and its first steps would undo what was learned
_OF_ANOTHER_OPTIMIZER = (
    *_ADAGRAD,
    "training.min_lr",
    "training.warmup_steps",
    "training.optimizer",
)


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
    defaults_from_data = (
        *BilinearModel.defaults_from_data,
        "model.bias",
        "training.schedule",
        "training.betas",
        "training.eps",
        "training.average",
    )

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """As the base class; the published settings for dense graphs of up to 20,000 entities."""
        chosen = super().defaults_for(size, config)
        suits = ENTITIES_TO_SAMPLE < size.entities <= _MOST_ENTITIES
        suits = suits and size.triples >= _FEWEST_TRIPLES * size.entities
        if chosen["model.loss"] != "sampled-softmax" or not suits:
            return chosen
        length = run_length(config, size.queries, 14_000, (20, 100), chosen["training.batch_size"])
        chosen = {**chosen, **_PUBLISHED, **length}
        if config.init_from is not None or any(config.gives(key) for key in _OF_ANOTHER_OPTIMIZER):
            return chosen
        return {**chosen, **_ADAGRAD, **with_weight_average(length, 3)}

    @staticmethod
    def compose(head: Tensor, relation: Tensor) -> Tensor:
        return complex_product(head, relation)

    @staticmethod
    def cubes(rows: Tensor) -> Tensor:
        return cubed_moduli(rows)

    @staticmethod
    def compose_conjugate(head: Tensor, tail: Tensor) -> Tensor:
        return complex_product(head, tail, conjugate=True)

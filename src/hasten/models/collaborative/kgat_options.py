"""Options of KGAT."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hasten.config import ModelOptions
from hasten.models.collaborative.aggregate import Aggregator
from hasten.objectives.pairwise import Sampling


class KGATOptions(ModelOptions):
    """Options of KGAT."""

    name: Literal["kgat"] = "kgat"
    width: int = Field(64, ge=1, description="dimension D of entities and users")
    relation_width: int = Field(64, ge=1, description="dimension K of relations")
    layers: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (64,), min_length=1, description="width of each propagation layer (paper: 64,32,16)"
    )
    aggregator: Aggregator = Field(
        "bi-interaction", description="how a node and its neighbors are combined"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="dropout rate of messages"
    )
    slope: float = Field(0.2, ge=0, description="negative slope of the leaky ReLU")
    l2: float = Field(1e-5, ge=0, description="L2 penalty of the pairs' vectors")
    kg_l2: float = Field(1e-5, ge=0, description="L2 penalty of the translation phase")
    kg_batch_size: int | None = Field(
        None, ge=1, description="edges per step of the translation phase; none: twice batch_size"
    )
    sampling: Sampling = Field(
        "users", description="training pairs: users uniformly, or every interaction once per epoch"
    )

"""Options of knowledge graph models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hasten.config import ModelOptions

_SMOOTHING = 0.1
Rate = Annotated[float, Field(ge=0, lt=1)]
Loss = Literal["1-n", "1-n-softmax", "1vsall", "sampled-softmax", "sampled"]
LOSS_DESCRIPTION = (
    "1-n (KvsAll): binary cross-entropy, all answers of a query at once; 1-n-softmax: softmax, all "
    "answers at once; 1vsall: softmax, one answer; sampled-softmax: softmax of all answers and of "
    "entities sampled for each step; sampled: one answer and sampled negatives"
)
#: the number of sampled entities by loss: of a step, of an answer
NEGATIVES = {"sampled-softmax": 2048, "sampled": 128}


class TripleOptions(ModelOptions):
    """Options of all knowledge graph models."""

    width: int = Field(200, ge=1, description="embedding dimension D")
    loss: Loss = Field("1-n", description=LOSS_DESCRIPTION)
    negatives: int | None = Field(
        None,
        ge=1,
        description="only for loss=sampled: negatives per answer (none: 128), and "
        "loss=sampled-softmax: per step (none: 2048)",
    )
    exclude_self: bool = Field(
        False,
        description="rank an entity last among the answers to its own query, for relations that "
        "link no entity to itself in training",
    )

    @model_validator(mode="after")
    def _refuse_negatives_without_effect(self) -> TripleOptions:
        if self.negatives is not None and self.loss not in NEGATIVES:
            losses = " and ".join(NEGATIVES)
            raise ValueError(f"negatives has no effect with loss={self.loss}, only with {losses}")
        return self


class FactorizedTripleOptions(TripleOptions):
    """Options of models with a score ``q(h, r) · e_t + b_t``."""

    bias: bool = Field(True, description="learn a bias b_t of each entity; false: it is 0")
    label_smoothing: Rate | None = Field(
        None,
        description="s, not for losses with samples: labels become (1-s) y + s/N; none: 0.1 "
        "for 1-n",
    )

    @model_validator(mode="after")
    def _refuse_smoothing_without_effect(self) -> FactorizedTripleOptions:
        if self.label_smoothing is not None and self.loss in NEGATIVES:
            raise ValueError(f"label_smoothing has no effect with loss={self.loss}")
        return self

    @property
    def smoothing(self) -> float:
        """The label smoothing in effect."""
        default = _SMOOTHING if self.loss == "1-n" else 0.0
        return default if self.label_smoothing is None else self.label_smoothing

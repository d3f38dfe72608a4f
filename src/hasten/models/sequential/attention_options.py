"""Options of models with self-attention, and their residual connections."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from hasten.models.sequential.base import SequentialOptions
from hasten.models.sequential.residual import HyperResiduals, PlainResiduals, Projection, Residuals

#: most streams for which a weight for each permutation is affordable
MAX_PERMUTED_STREAMS = 4


class AttentionOptions(SequentialOptions):
    """Options of models with self-attention."""

    blocks: int = Field(
        2, ge=1, le=1000, description="attention and feed-forward blocks (paper: 2)"
    )
    heads: int = Field(1, ge=1, description="attention heads; must divide the width (paper: 1)")
    block: Literal["plain", "ligr"] = Field(
        "plain", description="plain: the paper's; ligr: gated residuals and SwiGLU, as in eSASRec"
    )
    feedforward: int = Field(1, ge=1, description="inner width of the FFN, in multiples of D")
    norm: Literal["pre", "post", "query"] = Field(
        "pre",
        description="position of the layer norm; query: as in the first published code, which "
        "normalizes queries only and adds to the normalized input",
    )
    norm_eps: float = Field(1e-5, gt=0, description="constant ε of the layer norms")
    residual: Literal["plain", "mhc"] = Field(
        "plain", description="residual connections; mhc: manifold-constrained hyper-connections"
    )
    streams: int | None = Field(None, ge=2, le=16, description="mhc: residual streams; none: 4")
    projection: Projection | None = Field(
        None, description="mhc: how the doubly stochastic matrices are made; none: sinkhorn"
    )
    maps: Literal["dynamic", "static"] | None = Field(
        None, description="mhc: maps computed per token, or the same for all; none: dynamic"
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> AttentionOptions:
        if self.width % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide width ({self.width})")
        return self

    @model_validator(mode="after")
    def _ligr_is_pre_norm(self) -> AttentionOptions:
        if self.block == "ligr" and self.norm != "pre":
            raise ValueError("block=ligr needs norm=pre: the residual it adds to is not normalized")
        return self

    @model_validator(mode="after")
    def _hyper_connections(self) -> AttentionOptions:
        """Refuse what would have no effect; fill in what belongs to mhc."""
        if self.residual == "plain":
            for name in ("streams", "projection", "maps"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} belongs to residual=mhc, and residual is plain")
            return self
        if self.norm != "pre":
            raise ValueError("residual=mhc needs norm=pre: streams are not normalized on their way")
        if self.blocks == 1 and self.projection not in (None, "identity"):
            raise ValueError(
                f"projection={self.projection} has no effect with one block: the first sublayer "
                "would mix equal streams, the last what is averaged next"
            )
        filled = {
            "streams": self.streams or 4,
            "projection": self.projection or ("identity" if self.blocks == 1 else "sinkhorn"),
            "maps": self.maps or "dynamic",
        }
        if filled["projection"] == "permutation" and int(filled["streams"]) > MAX_PERMUTED_STREAMS:
            raise ValueError(
                f"projection=permutation weighs all {filled['streams']}! permutations: "
                f"at most {MAX_PERMUTED_STREAMS} streams"
            )
        for name, value in filled.items():
            object.__setattr__(self, name, value)  # the section is frozen
        return self


def residuals_of(options: AttentionOptions) -> Residuals:
    """The residual connections that the options ask for."""
    if options.residual == "plain":
        return PlainResiduals()
    assert options.streams is not None
    assert options.projection is not None
    return HyperResiduals(
        streams=options.streams,
        width=options.width,
        sublayers=2 * options.blocks,
        projection=options.projection,
        dynamic=options.maps == "dynamic",
    )

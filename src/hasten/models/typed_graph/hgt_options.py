"""Options of HGT."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hasten.config import ModelOptions
from hasten.objectives.link_sampling import LinkLoss, Mode


class HGTOptions(ModelOptions):
    """Options of HGT; the values of the guide in brackets."""

    name: Literal["hgt"] = "hgt"
    width: int = Field(512, ge=1, description="of the embeddings [512]")
    hidden: int = Field(256, ge=1, description="width of inputs and layers [256]")
    layers: int = Field(2, ge=1, description="layers of attention [2]")
    heads: int = Field(8, ge=1, description="heads; must divide hidden [8]")
    inputs: Literal["embeddings", "features", "constant"] = Field(
        "embeddings",
        description="a vector of every node's own; a linear map of data.features (in types without "
        "them: vectors of their nodes' own); or one vector a type [constant]",
    )
    activation: Literal["none", "relu"] = Field("none", description="after each layer [relu]")
    norm: bool = Field(True, description="layer norm after each layer, of the node's type [no]")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="of layers' results [0]")
    decoder: Literal["distmult", "dot"] = Field(
        "distmult", description="scores of links, with the relation or without it [dot]"
    )
    mode: Mode = Field(
        "full", description="messages: a pass over the graph a step, or neighborhoods of links "
        "(edges) or of links of drawn nodes (neighbors)"
    )  # fmt: skip
    scored_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="at most this share of a relation's links is scored in a step"
    )
    steps_per_epoch: int | None = Field(
        None, ge=1, description="none: until every link (or node) had its turn [1]"
    )
    loss: LinkLoss = Field(
        "softmax", description="of a link beside drawn ends: each alone, or all by a softmax"
    )
    negatives: int = Field(64, ge=1, description="other ends a step, relation and side")
    fan_out: int | None = Field(
        None, ge=1, description="messages of a relation into a node, in edges and neighbors; "
        "none: all in edges, 8 in neighbors"
    )  # fmt: skip
    contrastive_weight: float = Field(0.5, ge=0, description="of the contrast; 0: none [0.5]")
    contrastive_type: str | None = Field(
        None, description="type whose similar nodes are drawn together; none: disease, if there is"
    )
    contrastive_relations: tuple[str, ...] | None = Field(
        None, description="relations whose neighbors tell similarity; none: all"
    )
    similarity_threshold: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="nodes are similar above this Jaccard similarity of neighbors [0.1]"
    )
    contrastive_batch: int = Field(512, ge=1, description="nodes of the contrast a step")
    temperature: float = Field(0.2, gt=0, description="of the contrast")

    @model_validator(mode="after")
    def _consistent(self) -> HGTOptions:
        if self.fan_out is not None and self.mode == "full":
            raise ValueError("fan_out has no effect with mode=full")
        if self.contrastive_weight == 0 and (self.contrastive_type or self.contrastive_relations):
            raise ValueError("contrastive_type and _relations have no effect with weight 0")
        return self

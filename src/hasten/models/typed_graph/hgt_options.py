"""Options of HGT."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import Tensor

from hasten.config import ModelOptions, OnlyWith
from hasten.data.graph_store.mapped import MappedGraph
from hasten.data.tables import AnyDataset
from hasten.errors import ConfigurationError
from hasten.objectives.link_sampling import LinkLoss, LinkSampling, Mode

_FAN_OUT = 8


class HGTOptions(ModelOptions):
    """Options of HGT."""

    name: Literal["hgt"] = "hgt"
    width: int = Field(512, ge=1, description="embedding dimension")
    hidden: int = Field(64, ge=1, description="width of inputs and layers")
    layers: int = Field(2, ge=1, le=1000, description="number of attention layers")
    heads: int = Field(8, ge=1, description="attention heads; must divide hidden")
    inputs: Literal["embeddings", "features", "constant"] = Field(
        "embeddings",
        description="an embedding per node; a linear map of data.features (for types without "
        "features: embeddings); or one vector per node type",
    )
    activation: Literal["none", "relu"] = Field("none", description="activation after each layer")
    norm: bool = Field(True, description="layer norm after each layer, per node type")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="dropout rate of layers")
    decoder: Literal["distmult", "dot"] = Field(
        "distmult", description="score of a link: with relation weights, or the dot product"
    )
    relation_weights: Annotated[Literal["ones", "normal"], OnlyWith("decoder", "distmult")] = Field(
        "ones", description="initial relation weights: 1, or normal with mean and deviation 1"
    )
    self_score: bool = Field(
        False,
        description="train a score of nodes with themselves, for relations within a node type; "
        "each node is a negative of its own links",
    )
    exclude_self: bool = Field(
        False,
        description="rank a node last as an answer to its own query, for relations whose training "
        "links link no node to itself",
    )
    shallow_width: int = Field(
        0, ge=0, description="part of width that is a second embedding of each node, concatenated "
        "to the output of the layers; 0: none"
    )  # fmt: skip
    output_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="dropout rate of the node embeddings, in training"
    )
    query_dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="dropout rate of the product of a node and a relation, in training"
    )
    n3: float = Field(0.0, ge=0, description="weight of the cubes of both ends of each link (N3)")
    mode: Mode = Field(
        "full", description="a step encodes: the whole graph, or the neighborhoods of its scored "
        "links (edges) or of one link per sampled node (neighbors)"
    )  # fmt: skip
    scored_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="largest share of a relation's links that a step scores"
    )
    steps_per_epoch: int | None = Field(
        None, ge=1, description="none: as many as score every link (neighbors: node) once"
    )
    loss: LinkLoss = Field(
        "softmax", description="loss of a link and its negatives: binary, or softmax cross-entropy"
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1), OnlyWith("loss", "softmax")] = Field(
        0.0, description="share of the target that all candidates have in equal parts"
    )
    negatives: int = Field(256, ge=1, description="negatives per step and node type")
    filter_negatives: bool = Field(
        True,
        description="known answers are no negatives of their query; false: only the scored answer "
        "is none, so answers of one query compete",
    )
    fan_out: int | None = Field(
        None, ge=1, description="edges and neighbors: messages sampled per node and relation; "
        "none: all in edges, 8 in neighbors"
    )  # fmt: skip
    contrastive_weight: float = Field(0.5, ge=0, description="contrastive loss; 0: off")
    contrastive_type: str | None = Field(
        None, description="node type of the contrastive loss; none: disease, if it exists"
    )
    contrastive_relations: tuple[str, ...] | None = Field(
        None, description="relations that define similarity; none: all"
    )
    similarity_threshold: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="Jaccard similarity of neighbors above which nodes are similar"
    )
    contrastive_batch: int = Field(512, ge=1, description="contrastive anchors per step")
    temperature: float = Field(0.2, gt=0, description="temperature of the contrastive loss")

    @model_validator(mode="after")
    def _consistent(self) -> HGTOptions:
        if self.fan_out is not None and self.mode == "full":
            raise ValueError("fan_out has no effect with mode=full")
        if self.shallow_width >= self.width:
            raise ValueError("shallow_width must be less than width: the layers need the rest")
        if self.self_score and self.exclude_self:
            raise ValueError("self_score has no effect with exclude_self: turn one of them off")
        if self.contrastive_weight == 0 and (self.contrastive_type or self.contrastive_relations):
            raise ValueError("contrastive_type and _relations have no effect with weight 0")
        return self

    def sampling(self, batch_size: int, excluded_selves: Tensor | None) -> LinkSampling:
        """How a training step samples links, negatives and messages.

        excluded_selves: by relation, below 0 if nodes are no answers to themselves; None: are.
        """
        excluded = () if excluded_selves is None else tuple((excluded_selves < 0).tolist())
        default = _FAN_OUT if self.mode == "neighbors" else None
        return LinkSampling(
            self.mode,
            batch_size,
            self.scored_share,
            self.steps_per_epoch,
            self.negatives,
            default if self.fan_out is None else self.fan_out,
            self.loss,
            self.self_score,
            self.n3,
            excluded,
            self.filter_negatives,
            self.label_smoothing,
        )


def require_neighborhoods(options: HGTOptions, dataset: AnyDataset) -> None:
    """Raise ConfigurationError if a step would encode a whole graph that is in a store."""
    if options.mode == "full" and isinstance(dataset, MappedGraph):
        raise ConfigurationError(
            f"model.mode=full encodes the whole graph of {dataset.folder} in memory in each step: "
            "choose --set model.mode=neighbors or edges, or train from the files"
        )

"""The ``data`` section: what to read, how to clean and split it. One class per model family."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hasten.config.section import OnlyWith, Section

_Positive = Annotated[float, Field(gt=0)]
#: what a column of events can be
EventKind = Literal["categorical", "numeric"]
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(value: Any) -> Any:
    """Accept seconds as a number, or a text such as ``30m`` or ``7d``."""
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", value.strip().lower())
        if match is None:
            raise ValueError("expected seconds, or a number with s, m, h or d")
        return float(match[1]) * _UNITS[match[2]]
    return value


def event_column(text: str) -> tuple[str, EventKind | None]:
    """Name and kind of ``dwell:numeric``; without a kind None."""
    name, colon, kind = text.rpartition(":")
    if not colon:
        return text.strip(), None
    if kind.strip() not in get_args(EventKind):
        raise ValueError(f"{text!r}: the kind of a column is categorical or numeric")
    return name.strip(), cast(EventKind, kind.strip())


def _columns_of_events(value: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse other kinds, empty names and a column that is named twice."""
    names = [event_column(text)[0] for text in value]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns, each once, are expected")
    return value


class DataOptions(Section):
    """Options of every kind of data."""

    path: str | None = Field(None, description="file, folder or registered name; none: a sample")
    format: str | None = Field(None, description="format name; none: recognized by content")
    train: str | None = Field(None, description="training file, if files are named one by one")
    valid: str | None = Field(None, description="validation file (given split)")
    test: str | None = Field(None, description="test file (given split)")
    names: str | None = Field(
        None, description="file of names of items or entities: id<separator>name"
    )
    separator: str | None = Field(None, description="column separator; none: recognized")
    columns: dict[str, str] = Field(
        default_factory=dict, description="our column name -> name in the file (user, item, ...)"
    )
    ids: Literal["auto", "numbers", "labels"] = Field(
        "auto", description="numbers: 64-bit integers; labels: any text; auto: by content"
    )
    duplicates: Literal["keep", "drop", "error"] = Field(
        "keep", description="repeated (user, item, time) interactions, or triples"
    )
    split: Literal[
        "auto", "leave-last-two-out", "leave-last-one-out", "leave-random-two-out", "ratio", "time",
        "given",
    ] = Field(
        "auto",
        description="auto: given if the files have parts, else leave-last-two-out, or ratio for "
        "interactions without an order and for triples; leave-last-one-out: no validation part; "
        "time: train before valid before test, at two times for all users",
    )  # fmt: skip
    ratios: tuple[float, float, float] = Field(
        (0.8, 0.1, 0.1),
        description="train, valid, test shares of each user's interactions, of all of them "
        "(split=time) or of triples",
    )
    split_seed: int | None = Field(
        None, ge=0, lt=2**63, description="seed of a random split; none: the seed of the run"
    )
    refit: bool = Field(
        False,
        description="train on the validation part too, for as many epochs as were selected",
    )

    def seed_for_split(self, seed: int) -> int:
        """The seed of a random split in a run with this seed."""
        return seed if self.split_seed is None else self.split_seed

    @model_validator(mode="after")
    def _check_ratios(self) -> DataOptions:
        if min(self.ratios) < 0 or self.ratios[0] <= 0 or abs(sum(self.ratios) - 1) > 1e-6:
            raise ValueError("ratios must be three shares that sum to 1, the first above 0")
        return self


class InteractionOptions(DataOptions):
    """Options of interactions of users with items."""

    times: str | None = Field(None, description="file of times parallel to a file of sequences")
    time_unit: Literal["s", "ms", "us", "ns"] = Field("s", description="unit of the time column")
    min_rating: float | None = Field(None, description="keep interactions rated at least this")
    time_window: Annotated[
        _Positive | None, BeforeValidator(_seconds), OnlyWith("split", "time")
    ] = Field(
        None,
        description="split=time: length of the valid and of the test period, such as 12h or 7d; "
        "none: data.ratios",
    )
    fold: Annotated[int, OnlyWith("time_window")] = Field(
        0, ge=0, description="rolling windows: the test period ends this many windows before the "
        "last event; later events are left out",
    )  # fmt: skip
    session_gap: Annotated[_Positive | None, BeforeValidator(_seconds)] = Field(
        None,
        description="a longer pause, such as 30m, begins a new session; sessions take the place "
        "of users, as user#number",
    )
    k_core: int = Field(
        0, ge=0, description="repeatedly drop users and items with fewer interactions"
    )
    ratio_order: Literal["time", "random"] = Field(
        "time",
        description="ratio split: each user's last interactions (of data with an order), or a "
        "seeded random choice",
    )
    ratio_rounding: Literal["nearest", "down"] = Field(
        "nearest",
        description="ratio split: round a user's shares to the nearest number, or down, but to at "
        "least one if the training part keeps one",
    )
    valid_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each user's train items for validation, if a given split has none",
    )


class SequenceOptions(InteractionOptions):
    """Options of sequences of interactions."""

    item_features: str | None = Field(
        None, description="table of item features: item_id and columns of categories or numbers"
    )
    item_columns: Annotated[
        dict[str, Literal["category", "categories", "number"]], OnlyWith("item_features")
    ] = Field(
        default_factory=dict,
        description="column of item_features -> category, categories (several in a cell, "
        "separated by |) or number; none: all columns, by content",
    )
    event_features: Annotated[tuple[str, ...], AfterValidator(_columns_of_events)] = Field(
        (),
        description="columns of the events that describe them, such as device,dwell:numeric; "
        "categorical or numeric, by content where neither is given",
    )


class KnowledgeOptions(InteractionOptions):
    """Options of interactions with a knowledge graph about the items."""

    kg: str | None = Field(None, description="file of triples about the items")
    links: str | None = Field(
        None, description="file of item<separator>entity, if kg names items differently"
    )


class FeatureOptions(InteractionOptions):
    """Options of interactions with item features."""

    features: dict[str, str] = Field(
        default_factory=dict, description="modality -> file of item features (.npy, .parquet)"
    )


class PairOptions(FeatureOptions):
    """Options of user-item pairs. Of item features, only the set of items is used."""


class TripleOptions(DataOptions):
    """Options of triples, and of the typed edges of a graph."""

    entities: str | None = Field(
        None, description="file of the entities, label<separator>number, or JSON"
    )
    relations: str | None = Field(
        None, description="file of the relations, label<separator>number, or JSON"
    )
    relation_names: str | None = Field(
        None, description="file of relation names, as data.names; or a JSON object"
    )
    unknown: Literal["error", "drop", "rank-last", "keep"] = Field(
        "error",
        description="valid and test triples with an entity or relation of no training triple: "
        "keep ranks it like others, rank-last counts it as a miss",
    )
    nodes: str | None = Field(
        None, description="typed graphs: table of all nodes with the columns id, name, kind"
    )
    edges: dict[str, str] = Field(
        default_factory=dict,
        description="typed graphs: relation -> CSV file of its edges, whose header names the types",
    )
    node_types: tuple[str, ...] | None = Field(
        None, description="typed graphs: only nodes of these types, and the edges between them"
    )
    edge_types: tuple[str, ...] | None = Field(
        None, description="typed graphs: only these relations"
    )
    symmetric: tuple[str, ...] = Field(
        (), description="typed graphs: relations whose edges have no direction"
    )


class TypedGraphOptions(TripleOptions):
    """Options of typed graphs with node features."""

    features: dict[str, str] = Field(
        default_factory=dict, description="node type -> file of node features (.npy, .parquet)"
    )


class AnyDataOptions(SequenceOptions, KnowledgeOptions, PairOptions, TypedGraphOptions):
    """All options, for commands that read data without a model."""

    features: dict[str, str] = Field(
        default_factory=dict,
        description="modality (typed graphs: node type) -> file of features (.npy, .parquet)",
    )


#: what a model may declare as ``reads``, and the options of these data
READS: dict[str, type[DataOptions]] = {
    "interactions": InteractionOptions,
    "sequences": SequenceOptions,
    "pairs": PairOptions,
    "facts": KnowledgeOptions,
    "features": FeatureOptions,
    "triples": TripleOptions,
    "typed_graph": TypedGraphOptions,
}

"""The bodies of requests and responses."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

Label = StrictStr | StrictInt
#: most labels of a list
LONGEST = 10_000
Labels = Annotated[list[Label], Field(max_length=LONGEST)]
#: the value of an event feature
Cell = StrictStr | StrictInt | StrictFloat | StrictBool | None
K = Annotated[int, Field(10, ge=1, le=1000, description="number of results")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RecommendBody(_Body):
    """A known user, or a history. Unknown ids and values are ignored and counted."""

    user: Label | None = Field(None, description="a user of the training data")
    history: Labels | None = Field(None, description="item ids, oldest first, of any user")
    times: Annotated[list[StrictFloat | StrictInt], Field(max_length=LONGEST)] | None = Field(
        None, description="times of the history, in the unit of the training data"
    )
    features: dict[StrictStr, Annotated[list[Cell], Field(max_length=LONGEST)]] = Field(
        {}, description="event features of the history: column to values, null if missing"
    )
    exclude: Labels = Field([], description="item ids that are not recommended")
    include_seen: bool = Field(False, description="recommend items of the history too")
    k: K = 10
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"user": "u1", "k": 10}]}
    )


class Item(BaseModel):
    """One recommended item."""

    item_id: Label
    score: float
    name: str | None = None


class Recommended(BaseModel):
    """Items, best first. ignored: how many ids and values of the request are unknown."""

    items: list[Item]
    ignored: int


class SimilarBody(_Body):
    """An item, or an entity of a knowledge graph."""

    item: Label
    k: K = 10


class Similar(BaseModel):
    """The nearest items by cosine, best first; ``score`` is the cosine."""

    items: list[Item]


class PredictBody(_Body):
    """An incomplete triple: the relation, and either the head or the tail."""

    head: Label | None = None
    relation: Label
    tail: Label | None = None
    include_known: bool = Field(False, description="also return triples of the data")
    k: K = 10


class Triple(BaseModel):
    """One predicted triple. known: whether it is in the data."""

    head: Label
    relation: Label
    tail: Label
    score: float
    known: bool


class Predicted(BaseModel):
    """Triples, best first."""

    triples: list[Triple]


class Health(BaseModel):
    """What is served, and how many requests were answered in how many batches."""

    status: str
    model: str
    data: str
    run: str
    version: str
    questions: int
    batches: int


class Problem(BaseModel):
    """The message of a 4xx or 5xx response."""

    error: dict[str, str]

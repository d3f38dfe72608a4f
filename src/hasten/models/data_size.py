"""The sizes of the training data on which defaults depend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from hasten.config import RunConfig
from hasten.data.graph_store.mapped import MappedGraph
from hasten.data.tables import TRAIN, VALID, AnyDataset, KnowledgeGraph


@dataclass(frozen=True)
class DataSize:
    """Sizes of the training part of a dataset.

    mean_length, long_length: mean and 90 % quantile of the number of events of a user. triples: of
    a knowledge graph, or of the facts about items; queries: distinct (h, r) and (t, r) among them,
    of a knowledge graph. validated: whether there is a validation part.
    """

    users: int = 0
    items: int = 0
    interactions: int = 0
    mean_length: float = 0.0
    long_length: float = 0.0
    entities: int = 0
    relations: int = 0
    triples: int = 0
    queries: int = 0
    validated: bool = True

    @classmethod
    def of(cls, dataset: AnyDataset) -> DataSize:
        validated = dataset.holds(VALID)
        if isinstance(dataset, MappedGraph):
            return cls(
                entities=len(dataset.entities),
                relations=len(dataset.relations),
                triples=dataset.sizes[TRAIN],
                queries=dataset.manifest.queries,
                validated=validated,
            )
        if isinstance(dataset, KnowledgeGraph):
            triples, count = dataset.of(TRAIN), len(dataset.relations)
            sides = (triples.head, triples.tail)
            return cls(
                entities=len(dataset.entities),
                relations=count,
                triples=len(triples),
                queries=sum(len(np.unique(side * count + triples.relation)) for side in sides),
                validated=validated,
            )
        lengths = dataset.lengths(TRAIN)
        lengths, facts = lengths[lengths > 0], dataset.facts
        return cls(
            users=len(lengths),
            items=len(dataset.items),
            interactions=int(lengths.sum()),
            mean_length=float(lengths.mean()) if len(lengths) else 0.0,
            long_length=float(np.quantile(lengths, 0.9)) if len(lengths) else 0.0,
            entities=0 if facts is None else len(facts.entities),
            relations=0 if facts is None else len(facts.relations),
            triples=0 if facts is None else len(facts.triples),
            validated=validated,
        )

    def __str__(self) -> str:
        names = ("users", "items", "interactions", "entities", "relations", "triples")
        counts = [f"{count:,} {name}" for name in names if (count := getattr(self, name))]
        return ", ".join(counts)


#: the keys of :func:`run_length`
LENGTH = ("training.epochs", "evaluation.every")


#: fewer training triples than this are learned in smaller steps and with less dropout
SMALL_GRAPH = 20_000
#: with more entities than this, the default loss of triples samples negatives
MANY_ENTITIES = 100_000


def triple_loss(size: DataSize, config: RunConfig, few: str) -> str:
    """The loss of a model of triples: ``few`` unless a step over all entities takes too long.

    ``sampled`` has no label smoothing: given one, the loss stays.
    """
    samples = size.entities > MANY_ENTITIES and not config.gives("model.label_smoothing")
    loss: str = config.given("model.loss", "sampled" if samples else few)
    return loss


#: the keys of :func:`with_weight_average`
LENGTH_AND_AVERAGE = (*LENGTH, "training.average")
#: the keys of :func:`stopping`
STOPPING = (*LENGTH, "training.patience")

#: the default batch of models whose steps pass through a whole graph is doubled until an epoch has
#: at most this many
_GRAPH_STEPS = 1000


def with_graph_batches(size: DataSize, config: RunConfig) -> RunConfig:
    """The configuration with larger batches for larger graphs of interactions, if none is given."""
    batch_size = config.training.batch_size
    if not config.gives("training.batch_size"):
        while batch_size * _GRAPH_STEPS < size.interactions:
            batch_size *= 2
    training = config.training.model_copy(update={"batch_size": batch_size})
    return config.model_copy(update={"training": training})


def stopping(config: RunConfig, size: DataSize, examples: int) -> dict[str, Any]:
    """Up to 400 epochs with early stopping; an evaluation about every 100 steps.

    Without a validation part: the usual number of epochs. examples: of an epoch.
    """
    if not size.validated:
        return {}
    count = config.given("training.epochs", 400)
    between = 100 // max(1, ceil(examples / config.training.batch_size))
    every = max(1, min(5, between, count // 10))
    patience = "10 evaluations"
    return dict(zip(STOPPING, (count, every, patience), strict=True))


def run_length(
    config: RunConfig, examples: int, steps: int, epoch_bounds: tuple[int, int], batch_size: int = 0
) -> dict[str, Any]:
    """Options: epochs that take about this many steps, within bounds, and about ten evaluations.

    examples: of an epoch. epoch_bounds: the fewest and the most. batch_size: 0: that of the run.
    """
    fewest, most = epoch_bounds
    per_epoch = max(1, ceil(examples / (batch_size or config.training.batch_size)))
    count = config.given("training.epochs", min(most, max(fewest, ceil(steps / per_epoch))))
    return dict(zip(LENGTH, (count, max(1, count // 10)), strict=True))


def with_weight_average(length: Mapping[str, Any], max_average_epochs: float) -> dict[str, Any]:
    """The options of a run's length, and an average of the weights over a tenth of its epochs.

    It covers at most ``max_average_epochs``. No average in fewer than ten epochs.
    """
    epochs = length["training.epochs"]
    return {
        **length,
        "training.average": min(max_average_epochs, epochs / 10) if epochs >= 10 else None,
    }

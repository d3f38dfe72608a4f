"""Choose the defaults that follow from the size of the data, for options that were left out.

A run stores what was chosen in its ``config.yaml``: it repeats and resumes without this rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hasten.config import RunConfig
from hasten.data.graph_store.mapped import MappedGraph
from hasten.data.tables import VALID, AnyDataset, KnowledgeGraph
from hasten.models import data_size
from hasten.models.data_size import DataSize
from hasten.registry import load_model

#: with more users than this, so many are sampled for the validations while training
MANY_USERS, VALIDATED_USERS = 100_000, 10_000
#: so many triples are sampled for them, of graphs with more than ``MANY_ENTITIES``
VALIDATED_TRIPLES = 10_000
#: with more validation triples than this, so many are sampled for the validations of ``hgt``
MANY_TRIPLES = 50_000


def data_defaults(config: RunConfig, dataset: AnyDataset, processes: int = 1) -> dict[str, Any]:
    """The defaults of the model for these data, for the keys that the configuration leaves out."""
    per_process = config.training.batch_size_per_device
    if per_process is not None:
        size = {"batch_size": per_process * processes}
        training = config.training.model_copy(update=size)
        config = config.model_copy(update={"training": training})
    size_of = DataSize.of(dataset)
    defaults = dict(load_model(config.model.name).defaults_for(size_of, config))
    if size_of.users > MANY_USERS:
        defaults["evaluation.users"] = VALIDATED_USERS
    if isinstance(dataset, KnowledgeGraph):
        most = _most_validated(config, size_of, defaults)
        if most is not None and _validated(dataset) > most:
            defaults["evaluation.triples"] = VALIDATED_TRIPLES
    return {key: value for key, value in defaults.items() if not config.gives(key)}


def _most_validated(config: RunConfig, size: DataSize, defaults: dict[str, Any]) -> int | None:
    """How many validation triples are all ranked while training; None: any number."""
    loss = defaults.get("model.loss", getattr(config.model, "loss", None))
    if load_model(config.model.name).reads == "typed_graph" and loss is not None:
        return MANY_TRIPLES
    # only with negatives: a step over all entities takes longer than the ranking of its triples
    samples = loss in ("sampled", "sampled-softmax")
    many = samples and size.entities > data_size.MANY_ENTITIES
    return VALIDATED_TRIPLES if many else None


def _validated(graph: KnowledgeGraph) -> int:
    if isinstance(graph, MappedGraph):
        return graph.sizes[VALID]
    return int(np.count_nonzero(graph.part == VALID))


def with_data_defaults(
    config: RunConfig, dataset: AnyDataset, processes: int = 1
) -> tuple[RunConfig, tuple[str, ...]]:
    """The complete configuration of a new run, and notes for its log.

    processes: among which ``training.batch_size_per_device`` is multiplied.
    """
    chosen = data_defaults(config, dataset, processes)
    values = config.model_dump()
    for key, value in chosen.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    model = type(config.model).model_validate(values["model"])
    completed = type(config)(**{**values, "model": model, "data": config.data})
    return completed, (describe_defaults(chosen, dataset),) if chosen else ()


def describe_defaults(chosen: dict[str, Any], dataset: AnyDataset) -> str:
    """One line for people."""
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in chosen.items()}  # as in a file
    shown = ", ".join(f"{key} {value}" for key, value in lists.items())
    return f"{shown}: chosen by the size of the data ({DataSize.of(dataset)})"

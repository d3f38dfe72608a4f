"""Read the new data of an update, in any form that ``hasten train`` reads."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from hasten.config import (
    FeatureOptions,
    InteractionOptions,
    KnowledgeOptions,
    PairOptions,
    RunConfig,
    SequenceOptions,
    TripleOptions,
    TypedGraphOptions,
)
from hasten.config.data import DataOptions
from hasten.data.graph.load import load_graph, with_node_features
from hasten.data.interactions.load import load_dataset
from hasten.data.interactions.load_features import load_features, load_pairs
from hasten.data.interactions.load_item_features import load_sequences
from hasten.data.interactions.load_knowledge import load_knowledge
from hasten.data.tables import AnyDataset, Dataset, KnowledgeGraph
from hasten.errors import DataError
from hasten.updating.join_graph import join_graph
from hasten.updating.join_interactions import join_interactions
from hasten.updating.joined import Joined

#: keys that name files of the run's own data, or choose among the ids that these hold
_OF_FILES = (
    "format", "train", "valid", "test", "names", "times", "kg", "links", "features",
    "item_features", "entities",
    "relations", "relation_names", "nodes", "edges", "node_types", "edge_types", "symmetric",
)  # fmt: skip


def read_and_join(
    old: AnyDataset, config: RunConfig, table: object | None, given: Collection[str]
) -> Joined:
    """The data of the run joined with those that ``config.data.path`` or a table holds.

    given: the keys of ``data`` that were set for the new data; those of the run's files are not
    taken over. The new data may hold only what is new, or everything again.

    Raises:
        DataError: the new data cannot be read, or hold nothing new.
    """
    own = config.data
    cleared = {key: type(own).model_fields[key].get_default(call_default_factory=True)
               for key in _OF_FILES if hasattr(own, key) and key not in given}  # fmt: skip
    everything: dict[str, Any] = {"ratios": (1.0, 0.0, 0.0), "refit": False}
    if table is not None:
        everything["path"] = None
    options = own.model_copy(update={**cleared, **everything})
    seed = own.seed_for_split(config.seed)
    if isinstance(old, KnowledgeGraph):
        assert isinstance(own, TripleOptions)
        options = options.model_copy(update={"unknown": "keep"})
        new = _with_parts_or_without(options, seed, table)
        assert isinstance(new, KnowledgeGraph)
        return join_graph(old, new, own.node_types, own.edge_types)
    assert isinstance(own, InteractionOptions)
    options = options.model_copy(update={"k_core": 0, "valid_share": 0.0})
    found = _with_parts_or_without(options, seed, table)
    assert isinstance(found, Dataset)
    joined = join_interactions(old, found, own, seed)
    if joined.whole and own.k_core:  # only all events have the core of the run
        options = options.model_copy(update={"k_core": own.k_core})
        found = _with_parts_or_without(options, seed, table)
        assert isinstance(found, Dataset)
        joined = join_interactions(old, found, own, seed)
    return joined


def _with_parts_or_without(options: DataOptions, seed: int, table: object | None) -> AnyDataset:
    """The data with the parts that their files or a column give; else all for training."""
    try:
        return _read(options.model_copy(update={"split": "given", "ratios": (0.8, 0.1, 0.1)}),
                     seed, table)  # fmt: skip
    except DataError:
        return _read(options.model_copy(update={"split": "ratio"}), seed, table)


def _read(options: DataOptions, seed: int, table: object | None) -> AnyDataset:
    if isinstance(options, TripleOptions):
        graph = load_graph(options, seed, table)
        files = options.features if isinstance(options, TypedGraphOptions) else {}
        files = {kind: str(Path(file)) for kind, file in files.items()}
        return with_node_features(graph, files) if files else graph
    if isinstance(options, PairOptions):
        return load_pairs(options, seed, table)
    if isinstance(options, FeatureOptions):
        return load_features(options, seed, table, required=False)
    if isinstance(options, KnowledgeOptions):
        return load_knowledge(options, seed, table, required=False)
    if isinstance(options, SequenceOptions):
        return load_sequences(options, seed, table)
    assert isinstance(options, InteractionOptions)
    return load_dataset(options, seed, table)

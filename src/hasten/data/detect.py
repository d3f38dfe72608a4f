"""Detect the kind of data for commands without a model: interactions, triples or a typed graph."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hasten.config import (
    AnyDataOptions,
    DataOptions,
    FeatureOptions,
    InteractionOptions,
    KnowledgeOptions,
    SequenceOptions,
    TypedGraphOptions,
)
from hasten.data.event_store.manifest import holds_store
from hasten.data.event_store.opened import open_store
from hasten.data.graph.files import claims_triples, holds_typed, located
from hasten.data.graph.load import load_graph, with_node_features
from hasten.data.graph_store.manifest import holds_graph_store
from hasten.data.graph_store.opened import open_graph_store
from hasten.data.interactions.load_features import load_features
from hasten.data.interactions.load_item_features import load_sequences
from hasten.data.interactions.load_knowledge import load_knowledge
from hasten.data.interactions.side_files import (
    holds_features,
    holds_knowledge,
    locate_features,
    locate_knowledge,
)
from hasten.data.readers import triples, typed
from hasten.data.sources import catalog
from hasten.data.sources.files import holds_events, locate
from hasten.data.tables import AnyDataset
from hasten.errors import DataError, UsageError

_OF_TRIPLES = ("head", "relation", "tail")
_HOLDS: dict[type[DataOptions], str] = {
    InteractionOptions: "a store holds users, items and times, no other columns or files",
    SequenceOptions: "interactions",
    KnowledgeOptions: "interactions with a knowledge graph",
    FeatureOptions: "interactions with item features",
    TypedGraphOptions: "triples",
}
Family = TypeVar("Family", bound=DataOptions)


def load_any(options: AnyDataOptions, seed: int) -> AnyDataset:
    """Load whatever the options name: interactions, with side information, or a graph.

    Raises:
        DataError: the data cannot be used; with file, line and text.
        UsageError: options that these data do not have.
    """
    seed = options.seed_for_split(seed)
    if options.path is not None and holds_store(Path(options.path)):
        return open_store(Path(options.path), options)
    if options.path is not None and holds_graph_store(Path(options.path)):
        return open_graph_store(Path(options.path), options)
    if options.format != triples.NAME and holds_knowledge(options):
        return load_knowledge(narrowed(options, KnowledgeOptions), seed)
    if options.format != triples.NAME and holds_features(options):
        return load_features(narrowed(options, FeatureOptions), seed)
    if not holds_triples(options):
        return load_sequences(narrowed(options, SequenceOptions), seed)
    graph = load_graph(narrowed(options, TypedGraphOptions), seed)
    return with_node_features(graph, options.features) if options.features else graph


def readings(options: AnyDataOptions) -> list[str]:
    """The kinds of data that the files can be read as, whichever is the default.

    As ``kind`` of a registered data set: interactions, facts, features, triples, typed.
    """
    entry = catalog.registered(options.path)
    if entry is not None:
        more = ["interactions"] if entry.kind in ("facts", "features") else []
        return [*more, entry.kind]
    kinds = []
    with suppress(DataError, UsageError):
        beside = interactions_beside(options)
        if all(holds_events(path, beside) for path, _ in locate(beside).parts):
            kinds.append("interactions")
            kinds += ["facts"] if holds_knowledge(options) else []
            kinds += ["features"] if holds_features(options) else []
    with suppress(DataError, UsageError):
        if holds_typed(options):
            return [*kinds, "typed"]
    return [*kinds, "triples"] if _claims_triples(options, named=True) else kinds


def _claims_triples(options: AnyDataOptions, named: bool) -> bool:
    with suppress(DataError, UsageError), located(options) as place:
        return claims_triples(place.parts[0][0], options, named)
    return False


def interactions_beside(options: AnyDataOptions) -> FeatureOptions:
    """The options that read the interactions beside features or a knowledge graph."""
    knowledge = locate_knowledge(options, options.path, options.kg, options.links)
    return knowledge.reading(locate_features(options).interactions)


def narrowed(options: AnyDataOptions, family: type[Family]) -> Family:
    """The options as those of one family. UsageError where others are set."""
    values = options.model_dump(exclude_defaults=True)
    others = [f"data.{key}" for key in values if key not in family.model_fields]
    if others:
        raise UsageError(f"{', '.join(others)} has no effect on these data ({_HOLDS[family]})")
    return family.model_validate(values)


def holds_triples(options: AnyDataOptions) -> bool:
    """Whether the options or the first file are of triples rather than interactions."""
    if options.format is not None:
        return options.format == triples.NAME or options.format in typed.FORMATS
    if holds_typed(options):
        return True
    named = options.entities or options.relations or options.relation_names
    if named or any(role in options.columns for role in _OF_TRIPLES):
        return True
    if (entry := catalog.registered(options.path)) is not None:
        return entry.kind in ("triples", "typed")
    return _claims_triples(options, named=False)  # the readers of interactions report errors

"""Events or triples? For commands that read data without a model that says which it needs."""

from __future__ import annotations

from pathlib import Path

from hasten.config import DataOptions
from hasten.data.columns.text import sample
from hasten.data.graph.files import located
from hasten.data.graph.load import load_graph
from hasten.data.graph.load_typed import holds_typed
from hasten.data.interactions.feature_files import holds_features
from hasten.data.interactions.knowledge_files import holds_facts
from hasten.data.interactions.load import load_dataset
from hasten.data.interactions.load_features import load_multimodal
from hasten.data.interactions.load_knowledge import load_recommendation
from hasten.data.readers import triples, typed
from hasten.data.readers.interface import Claim
from hasten.data.sources import catalogue
from hasten.data.tables import AnyDataset
from hasten.errors import DataError, UsageError

_OF_TRIPLES = ("head", "relation", "tail")


def load_any(options: DataOptions, seed: int) -> AnyDataset:
    """The dataset, with what lies beside it of its items, or the graph that the options name."""
    if options.format != triples.NAME and holds_facts(options):
        return load_recommendation(options, seed, facts=True)
    if options.format != triples.NAME and holds_features(options):
        return load_multimodal(options, seed, features=True)
    return load_graph(options, seed) if holds_triples(options) else load_dataset(options, seed)


def holds_triples(options: DataOptions) -> bool:
    """Whether the options mean triples: they say so, or the first file can be nothing else."""
    if options.format is not None:
        return options.format == triples.NAME or options.format in typed.SUMMARIES
    if holds_typed(options):
        return True
    named = options.entities or options.relations or options.relation_names
    if named or any(role in options.columns for role in _OF_TRIPLES):
        return True
    if options.path is not None and not Path(options.path).exists():
        entry = catalogue.CATALOGUE.get(options.path)
        return entry is not None and entry.kind in ("triples", "typed")
    try:
        with located(options) as place:
            first = place.triples.parts[0][0]
            return isinstance(triples.claim(sample(first), options, named=False), Claim)
    except (DataError, UsageError):
        return False  # what is wrong with it, the readers of events say

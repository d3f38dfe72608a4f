"""Load user-item pairs for models without side information.

Users and items are those that a model with side information gets from the same files, so that
metrics are comparable.
"""

from __future__ import annotations

from dataclasses import replace

from hasten.config import PairOptions
from hasten.data.interactions.feature_files import holds_features
from hasten.data.interactions.id_lists import add_id_lists, read_list
from hasten.data.interactions.knowledge_files import locate_knowledge
from hasten.data.interactions.load import load_unordered
from hasten.data.interactions.load_features import load_with_feature_files
from hasten.data.sources import catalogue
from hasten.data.sources.catalogue import RemoteFolder
from hasten.data.sources.fetch import fetched_options
from hasten.data.tables import Dataset


def load_pairs(options: PairOptions, seed: int, table: object | None = None) -> Dataset:
    """Load interactions (or take a table of them), with all items of id lists or feature files.

    Raises:
        DataError: what is wrong, with file, line and text.
    """
    entry = None if table is not None else catalogue.registered(options.path)
    if isinstance(entry, RemoteFolder):
        return replace(load_pairs(fetched_options(entry, options), seed), name=entry.name)
    if options.features or (table is None and holds_features(options)):
        return load_with_feature_files(options, seed, table)[0]
    if table is not None or entry is not None:
        return load_unordered(options, seed, table)
    files = locate_knowledge(options, options.path)
    options = files.reading(options)
    lists = {role: read_list(path) for role, path in files.lists.items()}
    dataset = load_unordered(options, seed, None)
    return add_id_lists(dataset, lists, options)

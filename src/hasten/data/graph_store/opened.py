"""Open a store of a typed graph."""

from __future__ import annotations

from pathlib import Path

from hasten.config import DataOptions
from hasten.data.graph_store.manifest import GraphManifest
from hasten.data.graph_store.mapped import MappedGraph
from hasten.data.store_folder.manifest import read_manifest
from hasten.errors import UsageError


def open_graph_store(folder: Path, options: DataOptions | None = None) -> MappedGraph:
    """The typed graph of a store.

    Raises:
        DataError: a damaged store.
        UsageError: options that are applied when a store is made, or that need the graph in memory.
    """
    values = {} if options is None else options.model_dump(exclude_defaults=True)
    if values.get("refit"):
        raise UsageError(
            f"data.refit: the messages of the store {folder} are those of its training part; "
            "train from the files, or prepare a store with other data.ratios"
        )
    if others := [f"data.{key}" for key in values if key != "path"]:
        raise UsageError(
            f"{', '.join(others)} has no effect: {folder} is a store, whose edges are chosen and "
            "divided; give these options to hasten data prepare"
        )
    stored = read_manifest(folder, GraphManifest)
    return MappedGraph(folder, stored, (*stored.notes, *stored.changed()))

"""Input features of a typed graph's nodes: one file per type, one row per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from hasten.data.columns.checks import counted
from hasten.data.graph.node_types import NodeTypes, ids_of
from hasten.data.modality import Modality
from hasten.data.readers.features import open_features
from hasten.data.tables import KnowledgeGraph
from hasten.errors import DataError, did_you_mean

_SHOWN = 5


def with_node_features(graph: KnowledgeGraph, files: Mapping[str, str]) -> KnowledgeGraph:
    """The graph with features. files: type -> ``.npy`` or Parquet file.

    Row i of an ``.npy`` file is the node whose id is the number i; Parquet has a column ``id``. The
    run folder keeps a copy, whatever the size.

    Raises:
        DataError: no such type, a node without a row, values that are not finite.
    """
    types = NodeTypes.of(graph)
    labels = graph.entities.labels
    texts = ids_of(labels) if graph.typed else labels.cast(pa.string())
    found = []
    for name, file in files.items():
        if name not in types.names:
            raise DataError(
                f"data.features.{name}: no nodes of this type{did_you_mean(name, types.names)} "
                f"(there are {', '.join(types.names)})"
            )
        number = types.names.index(name)
        first, last = types.offsets[number : number + 2].tolist()
        opened = open_features(Path(file))
        mine = texts.slice(first, last - first)
        rows = opened.rows_of(_numbers(mine) if opened.items is None else mine)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            listed = ", ".join(str(mine[i]) for i in missing[:_SHOWN].tolist())
            more = ", ..." if len(missing) > _SHOWN else ""
            raise DataError(
                f"{file}: no row for {counted(len(missing), 'node')} of type {name!r}: "
                f"{listed}{more}; give them rows (of zeros, say), or leave the type's file out"
            )
        found.append((number, Modality.of(f"type-{number}", opened.taken(rows))))
    return replace(graph, features=tuple(sorted(found, key=lambda each: each[0])))


def _numbers(ids: pa.Array) -> pa.Array:
    """Ids as numbers if all of them are numbers."""
    try:
        return ids.cast(pa.int64())
    except pa.ArrowInvalid:
        return ids

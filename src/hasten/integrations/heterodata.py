"""Typed graphs as PyTorch Geometric's ``HeteroData``, and back (needs ``torch_geometric``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from hasten.data.graph.node_types import NodeTypes, ids_of
from hasten.errors import DataError, UsageError

if TYPE_CHECKING:
    from hasten.data.tables import KnowledgeGraph


def to_hetero_data(graph: KnowledgeGraph, *parts: int) -> Any:
    """The nodes of a typed graph with the edges of the given parts (none given: of all).

    ``data[type].num_nodes``, ``data[type].node_id`` (labels) and, for each relation,
    ``data[source, relation, target].edge_index``; a symmetric relation has both directions.

    Raises:
        UsageError: torch_geometric is not installed, or the graph has no types.
    """
    if not graph.typed:
        raise UsageError(f"{graph.name} has no types of nodes: HeteroData is for typed graphs")
    try:
        from torch_geometric.data import HeteroData  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError(
            "HeteroData needs PyTorch Geometric: pip install torch_geometric"
        ) from error
    data = HeteroData()
    types = NodeTypes.of(graph)
    ids = ids_of(graph.entities.labels)
    for name, first, last in zip(types.names, types.offsets, types.offsets[1:], strict=False):
        data[name].num_nodes = int(last - first)
        data[name].node_id = ids.slice(int(first), int(last - first)).to_pylist()
    triples = graph.of(*parts) if parts else graph.triples
    labels = graph.relations.labels.cast(pa.string()).to_pylist()
    for relation, label in enumerate(labels):
        of_relation = triples.take(triples.relation == relation)
        source, target = int(types.source[relation]), int(types.target[relation])
        ends = np.stack(
            [of_relation.head - types.offsets[source], of_relation.tail - types.offsets[target]]
        )
        kind = (types.names[source], label, types.names[target])
        data[kind].edge_index = torch.from_numpy(ends)
    return data


def from_hetero_data(data: Any) -> pa.Table:
    """The edges of a HeteroData in PrimeKG's columns: what ``hasten.train("hgt", table)`` takes.

    Nodes are labeled by ``data[type].node_id`` if it exists, else by their number.

    Raises:
        DataError: an edge to a node that there is not, a type of no node, or no edges.
    """
    columns: dict[str, list[str]] = {
        name: [] for name in ("relation", "x_type", "x_id", "y_type", "y_id")
    }
    for source, relation, target in data.edge_types:
        index = data[source, relation, target].edge_index
        for end, kind, nodes in (("x", source, index[0]), ("y", target, index[1])):
            if kind not in data.node_types:
                raise DataError(f"{(source, relation, target)}: no nodes of type {kind!r}")
            count = int(data[kind].num_nodes)
            numbers = nodes.tolist()
            wrong = [n for n in numbers if not 0 <= n < count]
            if wrong:
                raise DataError(
                    f"{(source, relation, target)}: an edge to node {wrong[0]} of {kind!r}, which "
                    f"has {count}"
                )
            called = getattr(data[kind], "node_id", None)
            columns[f"{end}_id"] += [str(n if called is None else called[n]) for n in numbers]
            columns[f"{end}_type"] += [kind] * len(numbers)
        columns["relation"] += [relation] * index.shape[1]
    if not columns["relation"]:
        raise DataError("the HeteroData has no edges")
    return pa.table(columns)

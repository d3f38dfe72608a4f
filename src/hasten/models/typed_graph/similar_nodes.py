"""Similar nodes of a type: by the Jaccard similarity of their neighbors in training."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hasten.arrays import Int64, ragged_offsets
from hasten.data.tables import KnowledgeGraph
from hasten.errors import ConfigurationError, did_you_mean
from hasten.models.typed_graph.hgt_options import HGTOptions
from hasten.models.typed_graph.jaccard import jaccard_pairs
from hasten.objectives.contrastive import Similar
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.message_graph import MessageGraph

_USUAL = "disease"


def contrast_of(
    options: HGTOptions, dataset: KnowledgeGraph, graph: MessageGraph
) -> Similar | None:
    """What the contrastive loss contrasts; None: it is off. Raises as :func:`similar_nodes`."""
    if not options.contrastive_weight:
        return None
    kind, relations = options.contrastive_type, options.contrastive_relations
    first, rows = similar_nodes(dataset, graph, kind, relations, options.similarity_threshold)
    batch = options.contrastive_batch
    return Similar(first, rows, options.contrastive_weight, options.temperature, batch, batch)


def similar_nodes(
    dataset: KnowledgeGraph,
    graph: MessageGraph,
    kind: str | None,
    relations: tuple[str, ...] | None,
    threshold: float,
) -> tuple[int, CSR]:
    """The first node of the type, and for each of its nodes the indices of similar nodes.

    kind: None: ``disease`` in any spelling, else the type with most links to other types.

    Raises:
        ConfigurationError: no such type or relation, or no similar nodes.
    """
    types = graph.types
    number = _number(kind, types.names, graph)
    first, last = int(types.offsets[number]), int(types.offsets[number + 1])
    into_type = graph.by_target[graph.offsets[first] : graph.offsets[last]]
    if relations is not None:
        every = np.arange(len(graph.bounds) - 1) % len(types.source)
        chosen = np.isin(every, _relations(dataset, relations))
        into_type = into_type[chosen[graph.relation_of(into_type)]]
    target, source = (ends[into_type].astype(np.int64) for ends in (graph.target, graph.source))
    target -= first
    sets = _sets(target, source, last - first, graph.nodes)
    similar = jaccard_pairs(sets, graph.nodes, threshold)
    if not len(similar.items):
        raise ConfigurationError(
            f"no two nodes of type {types.names[number]!r} share more than {threshold:g} of their "
            "neighbors: lower model.similarity_threshold, choose model.contrastive_type or "
            "model.contrastive_relations, or switch the contrast off "
            "(--set model.contrastive_weight=0)"
        )
    return first, similar


def _number(kind: str | None, names: tuple[str, ...], graph: MessageGraph) -> int:
    if kind is not None:
        if kind in names:
            return names.index(kind)
        hint = did_you_mean(kind, names)
        raise ConfigurationError(
            f"model.contrastive_type={kind!r}: no such type{hint} (there are {', '.join(names)})"
        )
    for number, name in enumerate(names):
        if name.lower() == _USUAL:
            return number
    types = graph.types
    sources = np.concatenate([types.source, types.target])
    targets = np.concatenate([types.target, types.source])
    messages = np.diff(graph.bounds) * (sources != targets)
    return int(np.argmax(np.bincount(targets, messages, len(names))))


def _relations(dataset: KnowledgeGraph, names: tuple[str, ...]) -> Int64:
    labels = dataset.relations.labels.cast(pa.string())
    known = labels.to_pylist()
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"model.contrastive_relations: no relation {name!r} (there are {', '.join(known)})"
            )
    return np.array([known.index(name) for name in names], np.int64)


def _sets(row: Int64, member: Int64, rows: int, members: int) -> CSR:
    codes = np.unique(row * members + member)
    offsets = ragged_offsets(codes // members, rows)
    return CSR(offsets, codes % members)

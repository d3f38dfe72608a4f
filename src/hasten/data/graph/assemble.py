"""Assemble a KnowledgeGraph from triples: vocabularies, policies, split, statistics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, packed
from hasten.config import TripleOptions
from hasten.data.graph import policies
from hasten.data.graph.random_splits import link_parts, random_parts
from hasten.data.graph.relation_overlap import RelationOverlap, train_pairs
from hasten.data.graph.typed_links import chosen_edges, stored_links
from hasten.data.graph.vocabularies import Dictionary, index_triples
from hasten.data.readers.interface import Read
from hasten.data.readers.names import with_names
from hasten.data.readers.node_table import NodeTable
from hasten.data.splits import given_parts, overlap_notes, overlaps
from hasten.data.tables import PART_NAMES, TEST, VALID, KnowledgeGraph, Source, Triples
from hasten.errors import DataError

GIVEN_REMEDY = (
    "a folder or an archive with train, valid and test files, or data.train, data.valid and "
    "data.test"
)


@dataclass(eq=False)
class GraphRead(Read):
    """What was read of a graph. relation_names: label -> name.

    typed: entities are ``type::id``; nodes: the table of a typed graph's nodes.
    """

    entities: Dictionary | None = None
    relations: Dictionary | None = None
    relation_names: dict[str, str] = field(default_factory=dict)
    typed: bool = False
    nodes: NodeTable | None = None


def assemble_graph(read: GraphRead, options: TripleOptions, seed: int) -> KnowledgeGraph:
    """The knowledge graph of what was read.

    Raises:
        DataError: ids, unknown entities, duplicates or the split cannot be used.
    """
    with read.errors():
        return _assemble(read, options, seed)


def _assemble(read: GraphRead, options: TripleOptions, seed: int) -> KnowledgeGraph:
    sources = read.sources
    index_notes: list[str] = []
    triples, entities, relations, outside = index_triples(
        sources, options.ids, (read.entities, read.relations), index_notes
    )
    row, notes = np.arange(len(triples)), [*read.notes]
    if read.typed:
        row = chosen_edges(read, read.nodes, triples, entities, relations, options, notes)
        triples, outside = triples.take(row), outside[row]
    notes += [*chain.from_iterable(columns.notes for columns in sources), *index_notes]
    counts: dict[str, Any] = {"read": len(row)}
    if read.typed:
        triples, relations, stored_rows = stored_links(
            triples, entities, relations, options.symmetric, notes
        )
        row, outside = row[stored_rows], outside[stored_rows]
    part, split = _parts(read, triples, row, options, seed)
    selected = policies.Selection(sources, triples, part, row, counts, notes)
    policies.apply_outside(selected, outside, options)
    policies.apply_duplicates(selected, options)
    rank_last = policies.apply_unknown(selected, entities, relations, options)
    order = np.argsort(selected.part, kind="stable")
    selected.take(order)
    triples = selected.triples
    if read.entities is None or options.unknown == "drop":
        listed = [0 if d is None else len(d.labels) for d in (read.entities, read.relations)]
        entities, (head, tail) = entities.compact(triples.head, triples.tail, keep=listed[0])
        relations, (relation,) = relations.compact(triples.relation, keep=listed[1])
        triples = Triples(head, relation, tail)
    if read.names:
        entities, more = with_names(entities, read.names, "entities")
        notes += more
    if read.relation_names:
        relations, more = with_names(relations, read.relation_names, "relations")
        notes += more
    files = (*read.files, *chain.from_iterable(columns.files for columns in sources))
    source = Source(read.format, read.path, files)
    graph = KnowledgeGraph(
        read.name, entities, relations, triples, selected.part, split, source, rank_last[order],
        read.typed,
    )  # fmt: skip
    counts |= describe_counts(graph, notes)
    return replace(graph, source=source.plus(notes, **counts))


def _parts(
    read: GraphRead, triples: Triples, row: Int64, options: TripleOptions, seed: int
) -> tuple[NDArray[np.int8], str]:
    """The part of every triple: as the files or a column name it, or at random."""
    part = read.parts()
    if is_given(part is not None, options):
        return given_parts(None if part is None else part[row], "triple", GIVEN_REMEDY)
    if read.typed:
        return link_parts(triples, options.ratios, seed)
    return random_parts(triples, options.ratios, seed)


def is_given(named: bool, options: TripleOptions) -> bool:
    """Whether the split is that of the files. named: whether these name parts. Raises DataError."""
    chosen = options.split
    if chosen == "auto":
        chosen = "given" if named else "ratio"
    if chosen == "given" and options.ratios != TripleOptions.model_fields["ratios"].default:
        raise DataError(
            "data.ratios has no effect: the files give the parts; leave it out, or choose "
            "data.split=ratio"
        )
    return chosen == "given"


def describe_counts(graph: KnowledgeGraph, notes: list[str]) -> dict[str, Any]:
    """The statistics of ``data.json``. Remarkable ones are added to ``notes``."""
    counts: dict[str, Any] = {
        "entities": len(graph.entities),
        "relations": len(graph.relations),
        "triples": len(graph.triples),
    }
    counts |= {name: int(np.sum(graph.part == p)) for p, name in enumerate(PART_NAMES)}
    entities, relations = graph.trained
    counts["entities_not_in_train"] = int(np.sum(~entities))
    counts["relations_not_in_train"] = int(np.sum(~relations))
    triples = graph.triples
    whole = packed(triples.head, triples.tail, triples.relation)
    if whole is None:
        ends = triples.head * len(graph.entities) + triples.tail
        _, pair = np.unique(ends, return_inverse=True)
        whole = pair * len(graph.relations) + triples.relation
    counts |= overlaps(whole, graph.part, "triple", "", []) | _leaks(graph)
    notes += count_notes(counts)
    return counts


def count_notes(counts: dict[str, Any]) -> list[str]:
    """Notes on the statistics that are remarkable."""
    notes = []
    for kind in ("entities", "relations"):
        missing = counts[f"{kind}_not_in_train"]
        if missing:
            notes.append(f"{missing:,} of {counts[kind]:,} {kind} stand in no training triple")
    notes += [f"there are no {name} triples" for name in ("valid", "test") if not counts[name]]
    notes += overlap_notes(counts, "triple", "")
    for name in ("valid", "test"):
        if leaking := counts[f"inverse_leaks_in_{name}"]:
            notes.append(
                f"inverse leakage: {leaking:,} of {counts[name]:,} {name} triples follow from a "
                "training triple by an inverse or symmetric relation "
                f"({counts[f'reversed_in_{name}']:,} pairs stand there the other way round)"
            )
    return notes


def _leaks(graph: KnowledgeGraph) -> dict[str, int]:
    """Valid and test triples (h, r, t) whose reverse (t, r', h) is a training triple.

    reversed: r' is any relation; inverse: r' is an inverse of r.
    """
    train, overlap = train_pairs(graph), RelationOverlap.of(graph, reverse=True)
    counts = {}
    for part in (VALID, TEST):
        linked, implied = overlap.implied(train, graph.of(part))
        counts[f"reversed_in_{PART_NAMES[part]}"] = int(linked.sum())
        counts[f"inverse_leaks_in_{PART_NAMES[part]}"] = int(implied.sum())
    return counts

"""Join new triples or typed edges, and node features, with those of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns.checks import counted
from hasten.data.graph.assemble import describe_counts
from hasten.data.graph.node_types import NodeTypes, type_codes
from hasten.data.tables import TRAIN, KnowledgeGraph, Triples, Vocabulary
from hasten.errors import DataError
from hasten.updating.joined import Joined, joined_features, repeated, source_counts, united


def join_graph(
    old: KnowledgeGraph,
    new: KnowledgeGraph,
    node_types: tuple[str, ...] | None = None,
    edge_types: tuple[str, ...] | None = None,
) -> Joined:
    """The triples of both. Those of the run keep their parts; new ones are trained on.

    node_types, edge_types: those that the run chose; others are left out. New triples keep the
    parts that their files give. Edges of a typed graph are stored as in the
    run: in the direction of their relation, or in both.

    Raises:
        DataError: nothing is new, or a new node has no features.
    """
    if old.typed != new.typed:
        raise DataError(
            "the run and the new data are not of one kind: one has typed nodes, the other has not"
        )
    new = _chosen(new, node_types, edge_types)
    entities, *places = united(old.entities, new.entities)
    relations, *kinds = united(old.relations, new.relations)
    a, b = (
        Triples(place[side.triples.head], kind[side.triples.relation], place[side.triples.tail])
        for side, place, kind in zip((old, new), places, kinds, strict=True)
    )
    part = new.part if new.split.startswith("given") else np.zeros(len(b), np.int8)
    if old.typed:
        b, part = _as_stored(old, b, part, entities, kinds[0])
    is_repeated, whole = repeated([a.head, a.relation, a.tail], [b.head, b.relation, b.tail])
    fresh = ~is_repeated
    if not fresh.any():
        raise DataError(
            f"{new.source.path or 'the new data'}: holds no triple that the run does not have"
        )
    b, part = b.take(fresh), part[fresh]
    all_parts = np.concatenate([old.part, part]).astype(np.int8)
    triples = Triples(*(
        np.concatenate([getattr(a, name), getattr(b, name)])
        for name in ("head", "relation", "tail")
    ))  # fmt: skip
    order = np.argsort(all_parts, kind="stable")
    trained = np.concatenate([old.part == TRAIN, np.zeros(len(b), bool)])[order]
    rank_last = np.concatenate([old.rank_last, np.zeros(len(b), bool)])[order]
    notes = []
    if is_repeated.any():
        notes.append(
            f"{counted(int(is_repeated.sum()), 'triple')} of the new data are in the run already"
        )
    split = old.split.removesuffix(", refitted on train and validation")
    split += f", {counted(len(b), 'triple')} added"
    source = replace(new.source, counts={}, notes=())
    graph = KnowledgeGraph(
        old.name, entities, relations, triples.take(order), all_parts[order], split, source,
        rank_last, old.typed,
    )  # fmt: skip
    seen, related = graph.trained
    run_triples = graph.triples  # triples that were misses, because of an id of no training triple
    unseen = ~(seen[run_triples.head] & seen[run_triples.tail] & related[run_triples.relation])
    graph = replace(graph, rank_last=rank_last & unseen)
    added = {"new_triples": len(b), **source_counts(old, graph)}
    counts = describe_counts(graph, notes)
    graph = replace(graph, source=source.plus(notes, **counts, **added))
    return Joined(_with_features(old, new, graph), trained, added, whole)


def _chosen(
    new: KnowledgeGraph, node_types: tuple[str, ...] | None, edge_types: tuple[str, ...] | None
) -> KnowledgeGraph:
    """The new graph with the types and relations that the run chose."""
    keep, triples = np.ones(len(new.triples), bool), new.triples
    if node_types is not None:
        names, code = type_codes(new.entities.labels)
        chosen = np.isin(names, node_types)[code]
        keep &= chosen[triples.head] & chosen[triples.tail]
    if edge_types is not None:
        texts = new.relations.labels.cast(pa.string()).to_pylist()
        keep &= np.isin(texts, edge_types)[triples.relation]
    if keep.all():
        return new
    if new.features:
        raise DataError(
            "the new data hold nodes or relations that the run left out, beside node features: "
            "leave them out of the files"
        )
    triples = triples.take(keep)
    entities, (head, tail) = new.entities.compact(triples.head, triples.tail)
    relations, (relation,) = new.relations.compact(triples.relation)
    return replace(
        new, entities=entities, relations=relations, triples=Triples(head, relation, tail),
        part=new.part[keep], rank_last=new.rank_last[keep],
    )  # fmt: skip


def _as_stored(
    old: KnowledgeGraph,
    edges: Triples,
    part: NDArray[np.int8],
    entities: Vocabulary,
    relation_place: Int64,
) -> tuple[Triples, NDArray[np.int8]]:
    """The new edges in the direction of the run's relations; symmetric ones in both."""
    types = NodeTypes.of(old)
    names, code = type_codes(entities.labels)
    number = np.array([names.index(name) for name in types.names], np.int64)
    row = np.full(int(max(edges.relation.max(), relation_place.max())) + 1, -1, np.int64)
    row[relation_place] = np.arange(len(relation_place))
    known = row[edges.relation]
    is_known, old_ids = known >= 0, np.maximum(known, 0)
    source, target = number[types.source][old_ids], number[types.target][old_ids]
    first, second = code[edges.head], code[edges.tail]
    turned = is_known & (source != target) & (first == target) & (second == source)
    wrong = is_known & ~turned & ((first != source) | (second != target))
    if wrong.any():
        where = int(np.flatnonzero(wrong)[0])
        name = old.relations.labels[int(known[where])].as_py()
        raise DataError(
            f"relation {name!r} joins {types.names[types.source[known[where]]]} and "
            f"{types.names[types.target[known[where]]]} in the run, but {names[first[where]]} and "
            f"{names[second[where]]} in the new data: give it another name"
        )
    head = np.where(turned, edges.tail, edges.head)
    tail = np.where(turned, edges.head, edges.tail)
    reversible = is_known & types.symmetric[old_ids] & (head != tail)
    stored = np.stack(
        [
            np.concatenate([head, tail[reversible]]),
            np.concatenate([edges.relation, edges.relation[reversible]]),
            np.concatenate([tail, head[reversible]]),
        ]
    )
    _, first_rows = np.unique(stored, axis=1, return_index=True)
    first_rows.sort()
    return Triples(*stored[:, first_rows]), np.concatenate([part, part[reversible]])[first_rows]


def _with_features(
    old: KnowledgeGraph, new: KnowledgeGraph, graph: KnowledgeGraph
) -> KnowledgeGraph:
    """The graph with the node features of both."""
    if not old.features:
        return graph
    sides = [(each, NodeTypes.of(each)) for each in (old, new)]
    types = NodeTypes.of(graph)
    if types.names != sides[0][1].names:
        raise DataError("new node types beside node features: train a new run")
    modalities = []
    for number, features in old.features:
        name = sides[0][1].names[number]
        joined_type = types.names.index(name)
        start, stop = types.offsets[joined_type : joined_type + 2].tolist()
        labels = graph.entities.labels[start:stop]
        places, features_by_side = [], []
        for side, kinds in sides:
            new_type = kinds.names.index(name) if name in kinds.names else None
            begin, end = (
                (0, 0) if new_type is None else kinds.offsets[new_type : new_type + 2].tolist()
            )
            places.append(Vocabulary(labels).index(side.entities.labels[begin:end]))
            features_by_side.append(dict(side.features).get(-1 if new_type is None else new_type))
        modality = joined_features(
            features, features_by_side[1], (places[0], places[1]), labels, f"node of type {name}"
        )
        modalities.append((joined_type, replace(modality, name=f"type-{joined_type}")))
    return replace(graph, features=tuple(sorted(modalities, key=lambda each: each[0])))

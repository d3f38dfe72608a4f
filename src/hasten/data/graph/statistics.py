"""Statistics of a knowledge graph: sizes, overlaps of the parts, leakage by inverse relations."""

from __future__ import annotations

from typing import Any

import numpy as np

from hasten.arrays import Int64, matches
from hasten.data.columns.parts import overlaps
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, KnowledgeGraph, Triples

#: r' is an inverse of r if at least this share of r's pairs (h, t) are pairs (t, h) of r'. A
#: symmetric relation is its own inverse. After Toutanova & Chen (2015)
_INVERSE = 0.8


def count(graph: KnowledgeGraph, notes: list[str]) -> dict[str, Any]:
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
    for kind in ("entities", "relations"):
        missing = counts[f"{kind}_not_in_train"]
        if missing:
            notes.append(f"{missing:,} of {counts[kind]:,} {kind} stand in no training triple")
    notes += [f"there are no {name} triples" for name in ("valid", "test") if not counts[name]]
    return counts | _overlaps(graph, notes) | _leaks(graph, notes)


def _keys(triples: Triples, graph: KnowledgeGraph, *, reverse: bool = False) -> Int64:
    """One integer per pair of entities: (head, tail), or (tail, head) with reverse."""
    ends = (triples.tail, triples.head) if reverse else (triples.head, triples.tail)
    return ends[0] * len(graph.entities) + ends[1]


def _overlaps(graph: KnowledgeGraph, notes: list[str]) -> dict[str, int]:
    """Triples that occur in two parts."""
    pairs = _keys(graph.triples, graph)
    _, pair = np.unique(pairs, return_inverse=True)
    whole = pair * len(graph.relations) + graph.triples.relation
    return overlaps(whole, graph.part, "triple", "", notes)


def _leaks(graph: KnowledgeGraph, notes: list[str]) -> dict[str, int]:
    """Valid and test triples (h, r, t) whose reverse (t, r', h) is a training triple.

    reversed: r' is any relation; inverse: r' is an inverse of r in the training part.
    """
    train = graph.of(TRAIN)
    keys = _keys(train, graph)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    inverse = _inverses(train, graph, keys, order)
    counts = {}
    for part in (VALID, TEST):
        judged = graph.of(part)
        name = PART_NAMES[part]
        row, place = matches(_keys(judged, graph, reverse=True), keys)
        other = train.relation[order[place]]
        pair = judged.relation[row] * len(graph.relations) + other
        reversed_count = len(np.unique(row))
        leaking = len(np.unique(row[np.isin(pair, inverse)]))
        counts[f"reversed_in_{name}"] = reversed_count
        counts[f"inverse_leaks_in_{name}"] = leaking
        if leaking:
            notes.append(
                f"inverse leakage: {leaking:,} of {len(judged):,} {name} triples follow from a "
                f"training triple by an inverse or symmetric relation ({reversed_count:,} pairs "
                "stand there the other way round)"
            )
    return counts


def _inverses(train: Triples, graph: KnowledgeGraph, keys: Int64, order: Int64) -> Int64:
    """The pairs (r, r') of relations, as r * R + r', where r' is an inverse of r."""
    relations = len(graph.relations)
    row, place = matches(_keys(train, graph, reverse=True), keys)
    pair = train.relation[row] * relations + train.relation[order[place]]
    # a triple counts once for each relation of its reversed pair
    found, number = np.unique(pair, return_counts=True)
    sizes = np.bincount(train.relation, minlength=relations)
    inverse: Int64 = found[number >= _INVERSE * sizes[found // relations]]
    return inverse

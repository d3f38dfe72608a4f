"""Triples as queries in both directions: the distinct (entity, relation) with their answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hasten.arrays import Int64, matches, maybe_among, order_by, ragged_offsets
from hasten.data.tables import TRAIN, KnowledgeGraph, Triples
from hasten.errors import DataError
from hasten.ops.graph.csr import CSR
from hasten.ops.negatives import KnownItems
from hasten.scoring import TripleQueries


def known_answers(
    triples: Iterable[Triples], relations: int, queries: TripleQueries, entities: int
) -> CSR:
    """The answers of each query among these blocks of triples, ascending and distinct."""
    query_codes = queries.relation * entities + queries.entity
    parts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for block in triples:
        for entity, relation, answer in _directions(block, relations):
            codes = relation * entities + entity
            is_wanted = maybe_among(codes, query_codes)
            parts.append((codes[is_wanted], answer[is_wanted]))
    codes, answer = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = order_by(codes, answer)
    codes, answer = codes[order], answer[order]
    row, place = matches(query_codes, codes)
    return CSR(ragged_offsets(row, len(queries)), answer[place]).distinct()


def both_directions(triples: Triples, relations: int) -> tuple[Int64, Int64, Int64]:
    """(entity, relation, answer) [2n]: all queries for tails, then all queries for heads."""
    tails, heads = _directions(triples, relations)
    entity, relation, answer = (np.concatenate(both) for both in zip(tails, heads, strict=True))
    return entity, relation, answer


def _directions(triples: Triples, relations: int) -> tuple[tuple[Int64, Int64, Int64], ...]:
    """(entity, relation, answer) of the queries for tails, and of those for heads."""
    return (
        (triples.head, triples.relation, triples.tail),
        (triples.tail, triples.relation + relations, triples.head),
    )


@dataclass(frozen=True, eq=False)
class GroupedQueries:
    """The distinct (entity, relation) of a part with their targets, duplicates included.

    triple: int64 [T] the triple of the part that a target belongs to.
    """

    queries: TripleQueries
    targets: CSR
    triple: Int64


def group_queries(triples: Triples, relations: int, entities: int) -> GroupedQueries:
    """Both queries of every triple, grouped by (entity, relation)."""
    entity, relation, answer = both_directions(triples, relations)
    codes = relation * entities + entity
    order = order_by(codes, answer)
    distinct, first = np.unique(codes[order], return_index=True)
    offsets = np.concatenate([first, [len(order)]]).astype(np.int64)
    queries = TripleQueries(distinct % entities, distinct // entities)
    triple = order % max(1, len(triples))
    return GroupedQueries(queries, CSR(offsets, answer[order]), triple)


def training_queries(graph: KnowledgeGraph) -> tuple[TripleQueries, CSR]:
    """The distinct (entity, relation) of the training part, and the answers of each."""
    entities, relations = len(graph.entities), len(graph.relations)
    grouped = group_queries(graph.of(TRAIN), relations, entities)
    return grouped.queries, grouped.targets.distinct()


def known_of_examples(
    graph: KnowledgeGraph, entity: Int64, relation: Int64
) -> tuple[KnownItems, Int64]:
    """The known answers of each training query, and the query of each example."""
    queries, answers = training_queries(graph)
    count = len(graph.entities)
    if answers.lengths.max() >= count:
        full = queries.take(np.flatnonzero(answers.lengths >= count)[:1])
        label = graph.entities.take(full.entity)[0].as_py()
        raise DataError(
            f"all {count:,} entities are answers of one query about {label!r}, so there are no "
            "negatives to sample: use a loss without negatives (model.loss=1-n)"
        )
    codes = queries.relation * count + queries.entity
    query = np.searchsorted(codes, relation * count + entity)
    return KnownItems.build(answers.rows, answers.items, len(queries), count), query

"""Triples as questions: the distinct (entity, relation) with their answers, in both directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hasten.arrays import Int64
from hasten.data.tables import TRAIN, KnowledgeGraph, Triples
from hasten.ops.graph.csr import CSR
from hasten.scoring import TripleQueries


def known_answers(triples: Triples, relations: int, queries: TripleQueries, entities: int) -> CSR:
    """Every query's answers among these triples, ascending and without repetitions."""
    entity, relation, answer = both_directions(triples, relations)
    asked = relation * entities + entity
    order = np.lexsort((answer, asked))
    asked, answer = asked[order], answer[order]
    wanted = queries.relation * entities + queries.entity
    begin = np.searchsorted(asked, wanted, "left")
    lengths = np.searchsorted(asked, wanted, "right") - begin
    offsets = np.zeros(len(wanted) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], lengths)
    return CSR(offsets, answer[places]).distinct()


def both_directions(triples: Triples, relations: int) -> tuple[Int64, Int64, Int64]:
    """(entity, relation, answer) [2n]: all tails asked for, then all heads."""
    entity = np.concatenate([triples.head, triples.tail])
    relation = np.concatenate([triples.relation, triples.relation + relations])
    return entity, relation, np.concatenate([triples.tail, triples.head])


@dataclass(frozen=True, eq=False)
class Questions:
    """The distinct (entity, relation) of a part with their targets, and where each came from.

    triple: int64 [T] the row of the part that a target belongs to; the same target of a query
    stands there once for each duplicate.
    """

    queries: TripleQueries
    targets: CSR
    triple: Int64


def questions_of(triples: Triples, relations: int, entities: int) -> Questions:
    """Both questions of every triple, those with the same given end together."""
    entity, relation, answer = both_directions(triples, relations)
    asked = relation * entities + entity
    order = np.lexsort((answer, asked))
    found, first, counts = np.unique(asked[order], return_index=True, return_counts=True)
    offsets = np.concatenate([first, [len(order)]]).astype(np.int64)
    assert np.array_equal(np.diff(offsets), counts)
    queries = TripleQueries(found % entities, found // entities)
    triple = order % max(1, len(triples))
    return Questions(queries, CSR(offsets, answer[order]), triple)


def training_rows(graph: KnowledgeGraph) -> tuple[TripleQueries, CSR]:
    """The distinct (entity, relation) of the training part, and the answers of each."""
    entities, relations = len(graph.entities), len(graph.relations)
    asked = questions_of(graph.of(TRAIN), relations, entities)
    return asked.queries, asked.targets.distinct()

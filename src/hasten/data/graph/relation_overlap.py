"""Inverse and near-duplicate relations, and the test triples that they leak.

A relation r' is an inverse of r if for most triples (h, r, t) the triple (t, r', h) is known too,
and a near-duplicate if (h, r', t) is. A held-out triple of r whose counterpart is in training then
follows from it by one rule (Toutanova & Chen 2015). A symmetric relation is its own inverse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, distinct, matches, order_by, repeats
from hasten.data.tables import TRAIN, KnowledgeGraph, Triples

Mask = NDArray[np.bool_]
#: r' implies r if this share of r's distinct triples of all parts has its counterpart under r'
IMPLIES = 0.8


@dataclass(frozen=True, eq=False)
class PairIndex:
    """Distinct triples, sorted by their pair of entities.

    keys: int64 [n], ``head * entities + tail``, ascending. A pair of relations (r, r') is the
    number ``r * relations + r'``.
    """

    triples: Triples
    keys: Int64
    entities: int
    relations: int

    @classmethod
    def of(cls, graph: KnowledgeGraph, triples: Triples) -> PairIndex:
        """An index of these triples of the graph."""
        entities, relations = len(graph.entities), len(graph.relations)
        keys = triples.head * entities + triples.tail
        if entities**2 * relations < 2**63:  # sorting numbers is much faster than ordering rows
            keys, relation = np.divmod(distinct(keys * relations + triples.relation), relations)
            head, tail = np.divmod(keys, entities)
            return cls(Triples(head, relation, tail), keys, entities, relations)
        is_repeated = repeats(keys, triples.relation)
        keys, triples = keys[~is_repeated], triples.take(~is_repeated)
        order = order_by(keys, triples.relation)
        return cls(triples.take(order), keys[order], entities, relations)

    def matches(self, triples: Triples, *, reverse: bool) -> tuple[Int64, Int64]:
        """(row, pair of relations) of triples (h, r, t) whose (h, r', t) is in the index.

        reverse: whose (t, r', h) is.
        """
        ends = (triples.tail, triples.head) if reverse else (triples.head, triples.tail)
        row, place = matches(ends[0] * self.entities + ends[1], self.keys)
        return row, triples.relation[row] * self.relations + self.triples.relation[place]


@dataclass(frozen=True, eq=False)
class RelationOverlap:
    """The pairs (r, r') that share pairs of entities, in the same direction or the reverse.

    pairs: int64 [m], ascending; shares: float64 [m], the share of r's distinct triples that have a
    counterpart; sizes: int64 [relations], the numbers of distinct triples. In the same direction r'
    differs from r.
    """

    reverse: bool
    pairs: Int64
    shares: NDArray[np.float64]
    sizes: Int64

    @classmethod
    def of(cls, graph: KnowledgeGraph, *, reverse: bool) -> RelationOverlap:
        """Of the triples of all parts, since a split also cuts pairs of triples apart."""
        index = PairIndex.of(graph, graph.triples)
        _, matching = index.matches(index.triples, reverse=reverse)
        pairs, counts = np.unique(matching, return_counts=True)
        if not reverse:
            other = pairs // index.relations != pairs % index.relations
            pairs, counts = pairs[other], counts[other]
        sizes = np.bincount(index.triples.relation, minlength=index.relations)
        return cls(reverse, pairs, counts / sizes[pairs // index.relations], sizes)

    def implied(self, train: PairIndex, triples: Triples) -> tuple[Mask, Mask]:
        """Which triples stand on a pair of entities of training, and which follow from it.

        The latter by a relation that implies theirs (inverse or near-duplicate).
        """
        row, pair = train.matches(triples, reverse=self.reverse)
        linked, implied = np.zeros(len(triples), bool), np.zeros(len(triples), bool)
        linked[row] = True
        implied[row[np.isin(pair, self.pairs[self.shares >= IMPLIES])]] = True
        return linked, implied


def train_pairs(graph: KnowledgeGraph) -> PairIndex:
    """The index of the training triples."""
    return PairIndex.of(graph, graph.of(TRAIN))

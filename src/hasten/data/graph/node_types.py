"""Node types and relation types of a typed graph, derived from labels and triples.

In a typed graph an entity's label is ``type::id``. Labels are sorted, so the nodes of a type are
contiguous. A relation joins one type to one type. A symmetric relation (both ends of one type) is
stored in both directions, and both are in the same part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.arrays import Int64, among
from hasten.data.tables import TYPE_MARK, KnowledgeGraph, Triples


@dataclass(frozen=True, eq=False)
class NodeTypes:
    """Types of nodes [T] and of the relations' ends.

    names: of the types; offsets: int64 [T + 1], nodes offsets[t]..offsets[t + 1] are of type t;
    source, target: int64 [R], the types of heads and tails; symmetric: bool [R].
    """

    names: tuple[str, ...]
    offsets: Int64
    source: Int64
    target: Int64
    symmetric: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> NodeTypes:
        """The types of a graph; a single type ``entity`` if the graph is not typed."""
        if isinstance(graph, GraphWithTypes):
            return graph.types
        count, relations = len(graph.entities), len(graph.relations)
        if not graph.typed:
            zeros = np.zeros(relations, np.int64)
            offsets = np.array([0, count], np.int64)
            return cls(("entity",), offsets, zeros, zeros, np.zeros(relations, bool))
        names, code = type_codes(graph.entities.labels)
        assert np.all(code[1:] >= code[:-1]), "nodes of a type must stand together"
        offsets = np.searchsorted(code, np.arange(len(names) + 1)).astype(np.int64)
        triples = graph.triples
        source, target = np.zeros((2, relations), np.int64)
        source[triples.relation] = code[triples.head]
        target[triples.relation] = code[triples.tail]
        return cls(names, offsets, source, target, symmetric_relations(triples, relations, code))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> Int64:
        """[T] nodes of each type."""
        return np.diff(self.offsets)

    @property
    def code(self) -> Int64:
        """[N] the type of every node."""
        return np.repeat(np.arange(len(self.names)), self.sizes)


class GraphWithTypes(KnowledgeGraph):
    """A typed graph whose types are stored, so that they are not derived from all its triples."""

    types: NodeTypes


def type_codes(labels: pa.Array) -> tuple[tuple[str, ...], Int64]:
    """Names of the types, sorted as their labels are, and the type of every label ``type::id``."""
    parts = pc.split_pattern(labels, TYPE_MARK, max_splits=1)
    types = pc.list_element(parts, 0).dictionary_encode()
    names = types.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda i: names[i] + TYPE_MARK)
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names))
    return tuple(names[i] for i in order), place[np.asarray(types.indices)]


def type_sizes(graph: KnowledgeGraph) -> tuple[int, ...]:
    """Number of nodes of each type; a single type if the graph is not typed."""
    if isinstance(graph, GraphWithTypes):
        return tuple(graph.types.sizes.tolist())
    if not graph.typed:
        return (len(graph.entities),)
    names, code = type_codes(graph.entities.labels)
    return tuple(np.bincount(code, minlength=len(names)).tolist())


def ids_of(labels: pa.Array) -> pa.Array:
    """The ids of labels ``type::id``."""
    return pc.list_element(pc.split_pattern(labels, TYPE_MARK, max_splits=1), 1)


def symmetric_relations(triples: Triples, relations: int, code: Int64) -> NDArray[np.bool_]:
    """[R] whether every edge of a relation is stored in both directions; loops do not count.

    code: the type of every node. Relations between two types are not symmetric, and not sorted.
    """
    of_one_type = np.bincount(triples.relation, minlength=relations) > 0
    of_one_type[triples.relation[code[triples.head] != code[triples.tail]]] = False
    if not of_one_type.all():
        triples = triples.take(of_one_type[triples.relation])
    entities = len(code)
    forward = np.sort((triples.relation * entities + triples.head) * entities + triples.tail)
    turned = (triples.relation * entities + triples.tail) * entities + triples.head
    has_reverse = among(turned, forward)
    loops = triples.head == triples.tail
    missing = np.bincount(triples.relation[~has_reverse], minlength=relations)
    others = np.bincount(triples.relation[~loops], minlength=relations)
    return np.asarray((missing == 0) & (others > 0))

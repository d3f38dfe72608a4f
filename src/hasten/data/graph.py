"""Knowledge graphs as typed tables: triples with their split, or as facts about items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hasten.data.modalities import Modality
from hasten.data.tables import TRAIN, Dataset, Int64, Source, Vocabulary


@dataclass(frozen=True, eq=False)
class Triples:
    """Facts (head, relation, tail). All int64 [n]: indices of entities and of relations."""

    head: Int64
    relation: Int64
    tail: Int64

    def __len__(self) -> int:
        return len(self.head)

    def take(self, rows: Int64 | NDArray[np.bool_]) -> Triples:
        """The given rows (a mask or positions)."""
        return Triples(self.head[rows], self.relation[rows], self.tail[rows])


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Triples with their vocabularies and their split into train, valid and test.

    part: int8 [n], TRAIN, VALID or TEST for each triple, in this order; within a part the triples
    are in the order of the files. split: how the parts were made, in words that travel with the
    numbers. rank_last: bool [n], triples of valid and test that count as misses because an entity
    or the relation stands in no training triple (``data.unknown=rank-last``). typed: whether the
    labels of entities are ``type::id`` (:mod:`hasten.data.node_types`). features: given ones, by
    the number of the type of nodes.
    """

    name: str
    entities: Vocabulary
    relations: Vocabulary
    triples: Triples
    part: NDArray[np.int8]
    split: str
    source: Source
    rank_last: NDArray[np.bool_]
    typed: bool = False
    features: tuple[tuple[int, Modality], ...] = ()

    def of(self, *parts: int) -> Triples:
        """The triples of the given parts."""
        return self.triples.take(np.isin(self.part, parts))

    @property
    def trained(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which entities and which relations stand in a training triple."""
        train = self.of(TRAIN)
        entities = np.zeros(len(self.entities), bool)
        entities[train.head] = entities[train.tail] = True
        relations = np.zeros(len(self.relations), bool)
        relations[train.relation] = True
        return entities, relations


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of the items of a Dataset: distinct triples over entities.

    Entity i is item i for the first N; an item of which nothing is known is an entity too. The
    others follow. Triples are ordered by head, relation, tail.
    """

    entities: Vocabulary
    relations: Vocabulary
    triples: Triples


AnyDataset = Dataset | KnowledgeGraph

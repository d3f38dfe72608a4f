"""Typed tables: the output of the readers, and the input of training and evaluation.

Shapes: ``n`` interactions, ``U`` users, ``N`` items, ``Q`` queries. Indices are int64 and
contiguous from 0; a ``Vocabulary`` maps them to labels and names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.arrays import Int64, ragged_offsets
from hasten.data.event_features import EventFeatures
from hasten.data.histories import Histories as Histories  # noqa: PLC0414 - also imported from here
from hasten.data.item_features import ItemFeatures
from hasten.errors import DataError

#: float16 or float32 [N, d]
Matrix = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Modality:
    """The features of one modality, one row per item.

    shape: items, width. digest: of the values in the order of the items (:func:`digest_of`).
    read: loads the values, called once; origin: the file that they come from, None for generated
    ones.
    """

    name: str
    shape: tuple[int, int]
    digest: str
    read: Callable[[], Matrix]
    origin: Path | None = None

    @classmethod
    def of(cls, name: str, values: Matrix, origin: Path | None = None) -> Modality:
        """From values in memory: float16 or float32 [N, d]."""
        return cls(name, (len(values), values.shape[1]), digest_of(values), lambda: values, origin)

    @property
    def width(self) -> int:
        return self.shape[1]

    @cached_property
    def values(self) -> Matrix:
        """float16 or float32 [N, d].

        Raises:
            DataError: the file they come from is missing or has changed.
        """
        values = self.read()
        if values.shape != self.shape or digest_of(values) != self.digest:
            raise DataError(
                f"the {self.name} features of {self.origin or 'the run folder'} are not those that "
                "the run was begun with: put the file back as it was, or begin a new run"
            )
        return values


def digest_of(values: Matrix) -> str:
    """sha256 over dtype, shape and values."""
    kind = "<f2" if values.dtype == np.float16 else "<f4"
    digest = hashlib.sha256(f"{kind} {values.shape[0]} {values.shape[1]}\n".encode())
    for start in range(0, len(values), 1024):
        digest.update(np.ascontiguousarray(values[start : start + 1024], kind).data)
    return digest.hexdigest()


TRAIN, VALID, TEST = 0, 1, 2
PART_NAMES = ("train", "valid", "test")
TYPE_MARK = "::"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The labels of the indices 0..len-1, in index order, with names where known.

    labels: int64 or string Arrow array without duplicates or nulls.
    names: string Arrow array of the same length (nulls where unknown), or None.
    """

    labels: pa.Array
    names: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def numeric(self) -> bool:
        return bool(pa.types.is_integer(self.labels.type))

    def index(self, labels: pa.Array) -> Int64:
        """Indices of the given labels, -1 where a label is unknown."""
        positions = pc.index_in(labels, value_set=self.labels)
        return np.asarray(pc.fill_null(positions, -1), dtype=np.int64)

    def take(self, indices: Int64) -> pa.Array:
        """Labels of the given indices."""
        return self.labels.take(pa.array(indices))

    def compact(self, *columns: NDArray[Any], keep: int = 0) -> tuple[Vocabulary, list[Int64]]:
        """The vocabulary without unused entries, and columns of indices numbered anew.

        keep: so many first entries stay although unused.
        """
        used = np.zeros(len(self), bool)
        used[:keep] = True
        for column in columns:
            used[column] = True
        if used.all():
            return self, [column.astype(np.int64, copy=False) for column in columns]
        index, used_ids = np.cumsum(used) - 1, pa.array(np.flatnonzero(used))
        names = None if self.names is None else self.names.take(used_ids)
        return Vocabulary(self.labels.take(used_ids), names), [index[column] for column in columns]


@dataclass(frozen=True, eq=False)
class Interactions:
    """Interactions of users with items, sorted by user, then time, then file order.

    user, item: int64 [n]; rating: float32 [n] or None; time: int64 [n] unix seconds or None.
    """

    user: Int64
    item: Int64
    rating: NDArray[np.float32] | None = None
    time: Int64 | None = None

    def __len__(self) -> int:
        return len(self.user)


@dataclass(frozen=True)
class Source:
    """The origin of a dataset, for the run's ``data.json``.

    files: one dict a file: name, sha256, bytes. counts: users, items, interactions, ...
    notes: findings and actions of the checks (duplicates dropped, ...).
    """

    format: str
    path: str | None = None
    files: tuple[dict[str, Any], ...] = ()
    counts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def plus(
        self, notes: Iterable[str] = (), files: Iterable[dict[str, Any]] = (), **counts: Any
    ) -> Source:
        """The source with more notes (each once) and files, and with these counts."""
        return replace(
            self,
            files=(*self.files, *files),
            counts={**self.counts, **counts},
            notes=tuple(dict.fromkeys((*self.notes, *notes))),
        )


@dataclass(frozen=True, eq=False)
class Triples:
    """Triples (head, relation, tail). All int64 [n]: indices of entities and of relations."""

    head: Int64
    relation: Int64
    tail: Int64

    def __len__(self) -> int:
        return len(self.head)

    def take(self, rows: Int64 | NDArray[np.bool_]) -> Triples:
        """The given rows (a mask or positions)."""
        return Triples(self.head[rows], self.relation[rows], self.tail[rows])

    def used(self, entities: int, relations: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of so many entities and relations occur."""
        entity, relation = np.zeros(entities, bool), np.zeros(relations, bool)
        entity[self.head] = entity[self.tail] = relation[self.relation] = True
        return entity, relation


@dataclass(frozen=True, eq=False)
class Facts:
    """The knowledge graph about the items of a Dataset: distinct triples over entities.

    The first N entities are the items, with or without triples; the others follow. Triples are
    sorted by head, relation, tail.
    """

    entities: Vocabulary
    relations: Vocabulary
    triples: Triples


@dataclass(frozen=True, eq=False)
class Dataset:
    """Interactions with their vocabularies and their split into train, valid and test.

    part: int8 [n], TRAIN, VALID or TEST for each interaction.
    split: a description of how the parts were made, reported with every metric.
    facts: the knowledge graph about the items, or None; modalities: the item features of models
    that read vectors; item_features, event_features: those of sequences.
    """

    name: str
    users: Vocabulary
    items: Vocabulary
    interactions: Interactions
    part: NDArray[np.int8]
    split: str
    source: Source
    facts: Facts | None = None
    modalities: tuple[Modality, ...] = ()
    item_features: ItemFeatures | None = None
    event_features: EventFeatures | None = None

    @property
    def event_feature_names(self) -> tuple[str, ...]:
        """The columns of the event features."""
        features = self.event_features
        return () if features is None else tuple(column.name for column in features.columns)

    def holds(self, part: int) -> bool:
        """Whether any interaction is in this part."""
        return bool(np.any(self.part == part))

    def lengths(self, *parts: int) -> Int64:
        """[U] how many interactions of these parts each user has."""
        user = self.interactions.user[np.isin(self.part, parts)]
        return np.bincount(user, minlength=len(self.users))

    def item_counts(self, *parts: int) -> Int64:
        """[N] how many interactions of these parts each item has."""
        item = self.interactions.item[np.isin(self.part, parts)]
        return np.bincount(item, minlength=len(self.items))

    def histories(self, *parts: int) -> Histories:
        """Each user's items of the given parts, oldest first; one row a user [U]."""
        keep = np.isin(self.part, parts)
        user = self.interactions.user[keep]
        offsets = ragged_offsets(user, len(self.users))
        time, features = self.interactions.time, self.event_features
        return Histories(
            offsets,
            self.interactions.item[keep],
            None if time is None else time[keep],
            features=None if features is None else features.entries.take(keep),
        )


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Triples with their vocabularies and their split into train, valid and test.

    part: int8 [n], TRAIN, VALID or TEST for each triple, in this order; within a part the triples
    are in the order of the files. split: a description of how the parts were made, reported with
    every metric. rank_last: bool [n], triples of valid and test that count as misses because an
    entity or the relation occurs in no training triple (``data.unknown=rank-last``). typed: whether
    the labels of entities are ``type::id`` (``node_types``). features: node features by the number
    of the node type.
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

    def holds(self, part: int) -> bool:
        """Whether any triple is in this part."""
        return bool(np.any(self.part == part))

    def of(self, *parts: int) -> Triples:
        """The triples of the given parts."""
        return self.triples.take(np.isin(self.part, parts))

    @property
    def trained(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which entities and which relations occur in a training triple."""
        return self.of(TRAIN).used(len(self.entities), len(self.relations))


AnyDataset = Dataset | KnowledgeGraph

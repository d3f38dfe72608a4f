"""Vocabularies of entities and relations: from the triples, and from dictionaries where given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import ids
from hasten.data.graph.dictionaries import Dictionary
from hasten.data.readers.interface import TripleColumns
from hasten.data.tables import Triples, Vocabulary


@dataclass(frozen=True, eq=False)
class Indexed:
    """Triples with the vocabularies that their indices point into.

    outside: bool [n], triples with an id that its dictionary lacks.
    """

    triples: Triples
    entities: Vocabulary
    relations: Vocabulary
    outside: NDArray[np.bool_]
    notes: tuple[str, ...] = ()


def unite_roles(
    kind: str, roles: tuple[str, ...], sources: list[TripleColumns], mode: ids.Mode = "auto"
) -> ids.Ids:
    """One vocabulary over the columns of these roles.

    Raises:
        DataError: ids that cannot be used, with their lines.
    """
    columns = [(source.rows, [getattr(source, role) for role in roles]) for source in sources]
    return ids.vocabulary(kind, roles, columns, mode)


def index_triples(
    sources: list[TripleColumns],
    mode: ids.Mode,
    entities: Dictionary | None,
    relations: Dictionary | None,
) -> Indexed:
    """The triples of all files as indices into vocabularies; dictionaries fix their order.

    Raises:
        DataError: ids that cannot be used, with their lines.
    """
    found = unite_roles("entity", ("head", "tail"), sources, mode)
    kinds = unite_roles("relation", ("relation",), sources, mode)
    ends = _Column.of(found.labels, [found.codes[::2], found.codes[1::2]], entities)
    middle = _Column.of(kinds.labels, [kinds.codes], relations)
    head, tail = ends.indices
    triples = Triples(head, middle.indices[0], tail)
    outside = ends.outside | middle.outside
    notes = (*found.notes, *kinds.notes)
    return Indexed(triples, ends.vocabulary, middle.vocabulary, outside, notes)


@dataclass(frozen=True, eq=False)
class _Column:
    """Indices of the triples into one vocabulary; outside: bool [n], ids not in the dictionary."""

    vocabulary: Vocabulary
    indices: list[Int64]
    outside: NDArray[np.bool_]

    @classmethod
    def of(
        cls, labels: pa.Array, codes: list[list[NDArray[np.int32]]], dictionary: Dictionary | None
    ) -> _Column:
        columns = [np.concatenate(each).astype(np.int64) for each in codes]
        outside = np.zeros(len(columns[0]), bool)
        if dictionary is None:
            return cls(Vocabulary(labels), columns, outside)
        vocabulary, index, strangers = dictionary.apply(labels)
        strange = np.zeros(len(labels), bool)
        strange[strangers] = True
        for column in columns:
            outside |= strange[column]
        return cls(vocabulary, [index[column] for column in columns], outside)


def compact(
    vocabulary: Vocabulary, columns: list[Int64], keep: int
) -> tuple[Vocabulary, list[Int64]]:
    """The vocabulary without unused entries, and the columns numbered anew.

    keep: so many first entries stay although unused.
    """
    used = np.zeros(len(vocabulary), bool)
    used[:keep] = True
    for column in columns:
        used[column] = True
    if used.all():
        return vocabulary, columns
    index, kept = np.cumsum(used) - 1, pa.array(np.flatnonzero(used))
    names = None if vocabulary.names is None else vocabulary.names.take(kept)
    labels = vocabulary.labels.take(kept)
    return Vocabulary(labels, names), [index[column] for column in columns]

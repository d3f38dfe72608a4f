"""Vocabularies of entities and relations: from the triples, and from dictionaries where given."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import ids
from hasten.data.graph.dictionaries import Dictionary
from hasten.data.readers.interface import TripleColumns
from hasten.data.tables import Triples, Vocabulary


def index_triples(
    sources: list[TripleColumns],
    mode: ids.Mode,
    dictionaries: tuple[Dictionary | None, Dictionary | None],
    notes: list[str],
) -> tuple[Triples, Vocabulary, Vocabulary, NDArray[np.bool_]]:
    """The triples of all files as indices into vocabularies; dictionaries fix their order.

    dictionaries: of entities and of relations. Returns the triples, the entities, the relations,
    and bool [n], which triples have an id that its dictionary lacks. Notes go to ``notes``.

    Raises:
        DataError: ids that cannot be used, with their lines.
    """
    found = ids.vocabulary("entity", ("head", "tail"), sources, mode)
    kinds = ids.vocabulary("relation", ("relation",), sources, mode)
    notes += [*found.notes, *kinds.notes]
    head, tail, relation = (
        np.concatenate(codes) for codes in (found.codes[::2], found.codes[1::2], kinds.codes)
    )
    entities, entity, foreign = _vocabulary(found.labels, dictionaries[0])
    relations, kind, foreign_kind = _vocabulary(kinds.labels, dictionaries[1])
    triples = Triples(entity[head], kind[relation], entity[tail])
    outside = foreign[head] | foreign[tail] | foreign_kind[relation]
    return triples, entities, relations, outside


def _vocabulary(
    labels: pa.Array, dictionary: Dictionary | None
) -> tuple[Vocabulary, Int64, NDArray[np.bool_]]:
    """The vocabulary, the index of each label in it, and which labels the dictionary lacks."""
    if dictionary is None:
        return Vocabulary(labels), np.arange(len(labels)), np.zeros(len(labels), bool)
    return dictionary.apply(labels)


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

"""Policies for triples with unknown ids (``data.unknown``) and for repeated triples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, repeats
from hasten.config import TripleOptions
from hasten.data.columns.checks import bad_rows, counted
from hasten.data.readers.interface import Columns
from hasten.data.tables import PART_NAMES, TRAIN, Triples, Vocabulary
from hasten.errors import DataError

REMEDY = (
    "choose what happens to them: --set data.unknown=keep (scored untrained, as most published "
    "figures are), rank-last (counted as misses) or drop"
)
NOT_TRAINED = "an entity or the relation stands in no training triple"
_UNKNOWN = {"drop": "left out", "rank-last": "counted as misses", "keep": "scored untrained"}


@dataclass(eq=False)
class Selection:
    """Triples on their way into a graph.

    row: int64 [n], the row of each within all files; counts, notes: what was done to them.
    """

    sources: Sequence[Columns]
    triples: Triples
    part: NDArray[np.int8]
    row: Int64
    counts: dict[str, Any]
    notes: list[str]

    def take(self, rows: NDArray[np.bool_] | Int64) -> None:
        """Keep these triples only, in this order."""
        self.triples = self.triples.take(rows)
        self.part, self.row = self.part[rows], self.row[rows]

    def refused(self, rows: NDArray[np.bool_], reason: str) -> DataError:
        """The error about the marked triples, with their files and lines."""
        sources = [(source.rows, len(source)) for source in self.sources]
        return bad_rows(sources, self.row[rows], reason, REMEDY)


def apply_outside(selected: Selection, outside: NDArray[np.bool_], options: TripleOptions) -> None:
    """Refuse, drop or keep triples with an id that a dictionary lacks."""
    selected.counts["outside_dictionary"] = int(outside.sum())
    if not outside.any():
        return
    counted_triples = (
        counted(int(outside.sum()), "triple") + " with an id that the dictionary lacks"
    )
    if options.unknown == "error":
        raise selected.refused(outside, "an entity or a relation that the dictionary lacks")
    if options.unknown == "drop":
        selected.notes.append(f"{counted_triples} left out (data.unknown=drop)")
        selected.take(~outside)
    else:
        selected.notes.append(
            f"{counted_triples}: the ids were added (data.unknown={options.unknown})"
        )


def apply_duplicates(selected: Selection, options: TripleOptions) -> None:
    """Refuse, drop or keep repetitions of a triple within a part; the first one stays."""
    triples = selected.triples
    is_repeated = repeats(triples.tail, triples.relation, triples.head, selected.part)
    count = int(is_repeated.sum())
    selected.counts["duplicates"] = count
    selected.notes += duplicate_notes(count, options)
    if count and options.duplicates == "drop":
        selected.take(~is_repeated)


def duplicate_notes(count: int, options: TripleOptions) -> list[str]:
    """The note about so many repetitions. Raises DataError if they are to be refused."""
    if not count:
        return []
    counted_triples = counted(count, "duplicate triple")
    if options.duplicates == "error":
        raise DataError(f"{counted_triples}; --set data.duplicates=drop or keep")
    did = "left out" if options.duplicates == "drop" else "kept"
    return [f"{counted_triples} {did} (data.duplicates)"]


def apply_unknown(
    selected: Selection, entities: Vocabulary, relations: Vocabulary, options: TripleOptions
) -> NDArray[np.bool_]:
    """Refuse, drop or keep triples with an entity or relation of no training triple.

    Returns bool [n]: the triples that count as misses (``data.unknown=rank-last``).
    """
    triples, part = selected.triples, selected.part
    entity, relation = triples.take(part == TRAIN).used(len(entities), len(relations))
    unknown = ~(entity[triples.head] & entity[triples.tail] & relation[triples.relation])
    per_part = {name: int(np.sum(unknown & (part == p))) for p, name in enumerate(PART_NAMES) if p}
    selected.counts |= {f"unknown_in_{name}": count for name, count in per_part.items()}
    if not unknown.any():
        return unknown
    if options.unknown == "error":
        raise selected.refused(unknown, NOT_TRAINED)
    selected.notes.append(unknown_note(per_part, options))
    if options.unknown == "drop":
        selected.take(~unknown)
    misses = options.unknown == "rank-last"
    return unknown if misses else np.zeros(len(selected.part), bool)


def unknown_note(per_part: dict[str, int], options: TripleOptions) -> str:
    """The note about valid and test triples with an entity or a relation of no training triple."""
    where = ", ".join(f"{count:,} of {name}" for name, count in per_part.items() if count)
    return (
        f"{counted(sum(per_part.values()), 'triple')} with an entity or a relation of no training "
        f"triple ({where}): {_UNKNOWN[options.unknown]} (data.unknown={options.unknown})"
    )

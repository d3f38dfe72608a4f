"""Sum up what the passes found in every range: counts, notes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import TypedGraphOptions
from hasten.data.columns.checks import Rows, bad_rows
from hasten.data.graph.policies import NOT_TRAINED, REMEDY, duplicate_notes, unknown_note
from hasten.data.graph.relation_overlap import IMPLIES
from hasten.data.graph.typed_links import Mask
from hasten.data.graph_store.edges import Edges
from hasten.data.graph_store.judge import Judged
from hasten.data.graph_store.survey import Directions
from hasten.data.store_folder.buckets import load, spans
from hasten.data.tables import PART_NAMES

_PARTS = range(len(PART_NAMES))


class Findings:
    """The sums over all ranges."""

    def __init__(self, edges: Edges, folder: Path) -> None:
        self._edges, self._folder = edges, folder
        relations = len(edges.labels)
        self.duplicates = 0
        self.sizes, self.unknown, self._overlaps = np.zeros((3, len(PART_NAMES)), np.int64)
        self._unknown_rows: list[NDArray[Any]] = []
        self._pairs, self._pair_counts = np.zeros((2, 0), np.int64)
        self._of_relation = np.zeros(relations, np.int64)
        self._linked = [0, 0]
        for name in PART_NAMES[1:]:
            (folder / f"leaks.{name}").touch()
        self._judged = 0
        self.used, none = np.zeros(edges.nodes, bool), np.zeros(relations, bool)
        self.directions = Directions(none.copy(), none.copy())

    def add(self, judged: Judged, low: Int64, high: Int64) -> None:
        """Add a range. low, high: the ends of its links."""
        self.duplicates += judged.duplicates
        self.sizes += judged.sizes
        self.unknown += judged.unknown
        self._overlaps += judged.overlaps
        self._unknown_rows.append(judged.unknown_rows)
        pairs = np.concatenate([self._pairs, judged.pairs[0]])
        counts = np.concatenate([self._pair_counts, judged.pairs[1]])
        self._pairs, place = np.unique(pairs, return_inverse=True)
        self._pair_counts = np.bincount(place, counts, len(self._pairs)).astype(np.int64)
        self._of_relation += judged.of_relation
        for number, leaks in enumerate(judged.leaks):
            leaks[0] += self._judged
            with (self._folder / f"leaks.{PART_NAMES[1 + number]}").open("ab") as file:
                np.ascontiguousarray(leaks.T).tofile(file)
            self._linked[number] += judged.linked[number]
        self._judged += 2 * len(low)
        self.used[low[judged.used]] = self.used[high[judged.used]] = True
        self.directions.add(judged.directions)

    @property
    def used_relations(self) -> Mask:
        """Which relations occur in a stored triple."""
        return self._of_relation > 0

    def policies(self, options: TypedGraphOptions, rows: list[Rows]) -> list[str]:
        """Notes on duplicates and unknown entities. Raises DataError if these are refused."""
        notes = duplicate_notes(self.duplicates, options)
        per_part = {PART_NAMES[p]: int(self.unknown[p]) for p in _PARTS if p}
        if not sum(per_part.values()):
            return notes
        if options.unknown == "error":
            sizes = np.diff(self._edges.ends, prepend=0).tolist()
            sources = list(zip(rows, sizes, strict=True))
            raise bad_rows(sources, np.concatenate(self._unknown_rows), NOT_TRAINED, REMEDY)
        return [*notes, unknown_note(per_part, options)]

    def counts(self, read: int, entities: Mask, relations: Mask) -> dict[str, int]:
        """The statistics of the store. entities, relations: which stand in a training triple."""
        counts = {"read": read, "outside_dictionary": 0, "duplicates": self.duplicates}
        counts |= {f"unknown_in_{PART_NAMES[p]}": int(self.unknown[p]) for p in _PARTS if p}
        counts |= {"entities": len(entities), "relations": len(relations)}
        counts |= {"triples": int(self.sizes.sum())}
        counts |= {PART_NAMES[p]: int(self.sizes[p]) for p in _PARTS}
        counts["entities_not_in_train"] = int(np.sum(~entities))
        counts["relations_not_in_train"] = int(np.sum(~relations))
        names = ("train_and_valid", "train_and_test", "valid_and_test")
        for name, overlap in zip(names, self._overlaps.tolist(), strict=True):
            counts[f"triples_in_{name}"] = overlap
        sizes = self._of_relation[self._pairs // len(self._of_relation)]
        implied = self._pairs[self._pair_counts / sizes >= IMPLIES]
        for place, name in enumerate(PART_NAMES[1:]):
            counts[f"reversed_in_{name}"] = self._linked[place]
            counts[f"inverse_leaks_in_{name}"] = self._leaking(f"leaks.{name}", implied)
        return counts

    def _leaking(self, name: str, implied: Int64) -> int:
        """The triples with a reverse in train, by a relation that implies theirs."""
        path, last, leaking = self._folder / name, -1, 0
        for begin, end in spans(0, path.stat().st_size // 24):
            triple, pair, times = load(path, np.int64, 3 * begin, 3 * end).reshape(-1, 3).T
            is_implied = np.isin(pair, implied)
            triple, times = triple[is_implied], times[is_implied]
            new = np.diff(triple, prepend=last) != 0  # a triple has a row for each of its pairs
            leaking += int(times[new].sum())
            last = int(triple[-1]) if len(triple) else last
        return leaking

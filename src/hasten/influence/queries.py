"""Test examples: triples or interactions from a file, the command line or a part of the data."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from hasten.arrays import Int64
from hasten.config import DataOptions
from hasten.data.columns.ids import vocabulary
from hasten.data.readers.triples import read_triples
from hasten.data.tables import PART_NAMES, TRAIN, VALID, Dataset, KnowledgeGraph, Triples
from hasten.errors import DataError, UsageError
from hasten.inference.inputs import TRIPLE, read_events
from hasten.inference.labels import indices_of

REMEDY = "test examples must be in the run's data"


@dataclass(frozen=True)
class Selection:
    """The test examples to explain: by label, from a file, or a part; if none, self-influence.

    labels: triples (h, r, t), or interactions (user, item) or (user,); part: valid or test; limit:
    at most so many tests.
    """

    labels: Sequence[tuple[str, ...]] | None = None
    file: Path | None = None
    part: str | None = None
    limit: int | None = None

    @property
    def known(self) -> tuple[int, ...]:
        """The parts in the history that predicts a selected interaction."""
        return (TRAIN,) if self.part == "valid" else (TRAIN, VALID)

    @property
    def empty(self) -> bool:
        return self.labels is None and self.file is None and self.part is None


def read_test_triples(path: Path, data: DataOptions) -> list[tuple[str, str, str]]:
    """The triples of a file in the format of the training data.

    data: the run's options, for its columns and separator. Raises DataError with file and line.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected head, relation and tail a line")
    options = data.model_copy(update={"ids": "labels"})
    read = read_triples(path, options)
    united = [
        vocabulary(name, (name,), [read], options.ids) for name in TRIPLE
    ]  # refuses bad rows with their line
    columns = [ids.labels.take(ids.codes[0]).to_pylist() for ids in united]
    return [(str(h), str(r), str(t)) for h, r, t in zip(*columns, strict=True)]


def split_cells(text: str, names: tuple[str, ...], flag: str) -> tuple[str, ...]:
    """The cells of ``a,b,c``; quotes allow a comma in a cell. Raises UsageError."""
    try:
        cells = [cell.strip() for cell in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error:
        cells = []
    if len(cells) != len(names) or not all(cells):
        raise UsageError(
            f"--{flag} {text}: expected {','.join(names)}; a label with a comma goes in quotes"
        )
    return tuple(cells)


def triples_of(graph: KnowledgeGraph, labels: Sequence[tuple[str, str, str]]) -> Triples:
    """The indices of these triples. Raises DataError with unknown labels and the nearest known."""
    heads, relations, tails = zip(*labels, strict=True)
    entity = indices_of(graph.entities, [*heads, *tails], "entity", REMEDY)
    relation = indices_of(graph.relations, list(relations), "relation", REMEDY)
    return Triples(entity[: len(heads)], relation, entity[len(heads) :])


def select_triples(graph: KnowledgeGraph, selection: Selection, options: DataOptions) -> Triples:
    """The selected triples. Raises UsageError or DataError."""
    if selection.empty:
        return Triples(*(np.empty(0, np.int64) for _ in range(3)))
    labels = selection.labels
    if selection.file is not None:
        labels = read_test_triples(selection.file, options)
    if labels is None:
        assert selection.part is not None
        triples = graph.of(PART_NAMES.index(selection.part))
        if not len(triples):
            raise UsageError(f"--part {selection.part}: the run's data have no such triples")
    elif any(len(row) != 3 for row in labels):
        raise UsageError("this run is of triples: give --triple h,r,t, --test FILE or --part")
    else:
        triples = triples_of(graph, cast(Sequence[tuple[str, str, str]], labels))
    return triples.take(np.arange(len(triples))[: selection.limit])


def select_events(dataset: Dataset, selection: Selection) -> tuple[Int64, Int64]:
    """Users and items of the selected interactions. Raises UsageError or DataError.

    Of a user without an item, the interactions of the test part.
    """
    if selection.empty:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    labels = selection.labels
    if selection.file is not None:
        labels = read_events(selection.file)
    if labels is None:
        assert selection.part is not None
        users, items = part_of_events(dataset, selection.part)
    elif any(len(row) == 3 for row in labels):
        raise UsageError("this run is of interactions: give --event user,item, --test or --part")
    else:
        users = indices_of(dataset.users, [row[0] for row in labels], "user", REMEDY)
        if all(len(row) == 2 for row in labels):
            items = indices_of(dataset.items, [row[1] for row in labels], "item", REMEDY)
        else:
            users, items = part_of_events(dataset, "test", users)
    users, items = users[: selection.limit], items[: selection.limit]
    lengths = dataset.histories(*selection.known).lengths[users]
    if not lengths.all():
        label = dataset.users.take(users[lengths == 0][:1])[0].as_py()
        raise DataError(
            f"user {label!r} has no interactions before this part, so nothing predicts this one"
        )
    return users, items


def part_of_events(dataset: Dataset, part: str, users: Int64 | None = None) -> tuple[Int64, Int64]:
    """Users and items of the interactions of a part, in the order of these users."""
    if users is None:
        users = np.arange(len(dataset.users))
    chosen = dataset.histories(PART_NAMES.index(part)).take(users)
    if not len(chosen.items):
        raise UsageError(f"--part {part}: these users have no such interactions")
    return np.repeat(users, chosen.lengths), chosen.items

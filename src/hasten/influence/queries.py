"""What is to be explained: triples or events, of a file, of the command line or of the data."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from hasten.arrays import Int64
from hasten.config import DataOptions
from hasten.data.graph.vocabularies import unite_roles
from hasten.data.readers.triples import read_triples
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, KnowledgeGraph, Triples
from hasten.errors import DataError, UsageError
from hasten.inference.inputs import TRIPLE
from hasten.inference.labels import indices_of

REMEDY = "only what stands in the run's data can be traced"
_PARTS = {"valid": VALID, "test": TEST}


def read_test_triples(path: Path, data: DataOptions) -> list[tuple[str, str, str]]:
    """Triples of a file, as those of training are read: a header, or three cells a line.

    data: the options of the run, whose columns and separator hold for this file too. Raises
    DataError with file and line.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected head, relation and tail a line")
    options = data.model_copy(update={"ids": "labels"})
    read = read_triples(path, options)
    united = [
        unite_roles(name, (name,), [read], options.ids) for name in TRIPLE
    ]  # refuses bad rows with their line
    columns = [ids.labels.take(ids.codes[0]).to_pylist() for ids in united]
    return [(str(h), str(r), str(t)) for h, r, t in zip(*columns, strict=True)]


def split_cells(text: str, names: tuple[str, ...], flag: str) -> tuple[str, ...]:
    """``a,b,c`` as cells with these names; quotes keep a comma within one."""
    try:
        cells = [cell.strip() for cell in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error:
        cells = []
    if len(cells) != len(names) or not all(cells):
        raise UsageError(
            f"--{flag} {text}: expected {','.join(names)}; a label with a comma goes in quotes"
        )
    return tuple(cells)


def triples_of(graph: KnowledgeGraph, labels: list[tuple[str, str, str]]) -> Triples:
    """Indices of labels. Raises DataError with the unknown ones and the nearest known."""
    heads, relations, tails = zip(*labels, strict=True)
    entity = indices_of(graph.entities, [*heads, *tails], "entity", REMEDY)
    relation = indices_of(graph.relations, list(relations), "relation", REMEDY)
    return Triples(entity[: len(heads)], relation, entity[len(heads) :])


def part_of_graph(graph: KnowledgeGraph, part: str) -> Triples:
    """The triples of the validation or test part. Raises UsageError where there are none."""
    found = graph.of(_PARTS[part])
    if not len(found):
        raise UsageError(f"--part {part}: the data of the run have no such triples")
    return found


def events_of(dataset: Dataset, labels: list[tuple[str, ...]]) -> tuple[Int64, Int64]:
    """Users and items of events; of a user alone, the events of the test part."""
    users = indices_of(dataset.users, [row[0] for row in labels], "user", REMEDY)
    if all(len(row) == 2 for row in labels):
        items = indices_of(dataset.items, [row[1] for row in labels], "item", REMEDY)
        return users, items
    return part_of_events(dataset, "test", users)


def part_of_events(dataset: Dataset, part: str, users: Int64 | None = None) -> tuple[Int64, Int64]:
    """Users and items of the events of a part, those of the given users in their order."""
    held = dataset.histories(_PARTS[part])
    if users is None:
        users = np.arange(len(dataset.users))
    chosen = held.take(users)
    if not len(chosen.items):
        raise UsageError(f"--part {part}: there are no such events of these users")
    return np.repeat(users, chosen.lengths), chosen.items


def require_history(dataset: Dataset, users: Int64) -> None:
    """Refuse users of whom nothing is known before the test part."""
    lengths = dataset.histories(TRAIN, VALID).lengths[users]
    if not lengths.all():
        label = dataset.users.take(users[lengths == 0][:1])[0].as_py()
        raise DataError(
            f"user {label!r} has no events before the test part, so that nothing predicts the event"
        )

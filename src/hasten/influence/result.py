"""Influences as rows: who speaks for each test and who against it, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.tables import Dataset, KnowledgeGraph, Triples, Vocabulary
from hasten.influence.trace import Best

Columns = dict[str, Any]
KINDS = ("proponent", "opponent")


@dataclass(frozen=True, eq=False)
class Influences:
    """The rows, and what was traced (the keys of the command's JSON object but for the rows)."""

    table: pa.Table
    about: Mapping[str, Any]

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True, eq=False)
class Found:
    """n rows: int64 test (-1: itself) and example, kind, rank from 1, influence."""

    test: Int64
    example: Int64
    kind: list[str]
    rank: NDArray[np.int32]
    influence: NDArray[np.float64]


def of_tests(proponents: Best, opponents: Best) -> Found:
    """Rows of every test: its proponents, strongest first, then its opponents."""
    tests, examples, kinds, ranks, influences = [], [], [], [], []
    for number, best in enumerate((proponents, opponents)):
        ids = best.ids.cpu().numpy()
        row, column = np.nonzero(ids >= 0)
        tests.append(row)
        examples.append(ids[row, column])
        kinds.append(np.full(len(row), number))
        ranks.append(column + 1)
        influences.append(best.scores.cpu().numpy()[row, column])
    test, kind, rank = np.concatenate(tests), np.concatenate(kinds), np.concatenate(ranks)
    order = np.lexsort((rank, kind, test))
    return Found(
        test[order],
        np.concatenate(examples)[order],
        [KINDS[number] for number in kind[order]],
        rank[order].astype(np.int32),
        _shortest(np.concatenate(influences)[order]),
    )


def of_examples(own: Tensor, topk: int | None) -> Found:
    """Rows of the training examples by their influence on themselves, largest first."""
    scores = own.cpu().numpy()
    order = np.argsort(-scores, kind="stable")[:topk]
    rank = np.arange(1, len(order) + 1, dtype=np.int32)
    nobody = np.full(len(order), -1, np.int64)
    return Found(nobody, order, ["self"] * len(order), rank, _shortest(scores[order]))


def _shortest(scores: NDArray[Any]) -> NDArray[np.float64]:
    """The numbers with the digits that tell them apart, so that all formats hold the same."""
    return scores.astype(str).astype(np.float64)


def triple_table(
    found: Found, graph: KnowledgeGraph, train: Triples, tests: Triples, method: str
) -> pa.Table:
    """Columns: the test (if there is one), kind, rank, influence, the training triple, method."""
    columns: Columns = {}
    if tests is not None and len(tests):
        columns["test"] = found.test + 1
        columns |= _triples(graph, tests.take(found.test), "test_")
    columns |= _middle(found)
    columns |= _triples(graph, train.take(found.example), "")
    return pa.table({**columns, "method": [method] * len(found.rank)})


def event_table(
    found: Found,
    dataset: Dataset,
    events: tuple[Int64, Int64, Int64],
    tests: tuple[Int64, Int64] | None,
    method: str,
) -> pa.Table:
    """The same of events. events: user, item and place (from 0) of each row's training event."""
    columns: Columns = {}
    if tests is not None:
        columns["test"] = found.test + 1
        columns |= _events(dataset, tests[0][found.test], tests[1][found.test], "test_")
    columns |= _middle(found)
    columns |= _events(dataset, events[0], events[1], "")
    columns["position"] = events[2] + 1
    return pa.table({**columns, "method": [method] * len(found.rank)})


def _middle(found: Found) -> Columns:
    return {"kind": found.kind, "rank": found.rank, "influence": found.influence}


def _triples(graph: KnowledgeGraph, triples: Triples, prefix: str) -> Columns:
    columns: Columns = {}
    parts = (
        ("head", graph.entities, triples.head),
        ("relation", graph.relations, triples.relation),
        ("tail", graph.entities, triples.tail),
    )
    for name, vocabulary, indices in parts:
        columns[prefix + name] = vocabulary.take(indices)
    for name, vocabulary, indices in parts:
        columns |= _names(vocabulary, indices, f"{prefix}{name}_name")
    return columns


def _events(dataset: Dataset, user: Int64, item: Int64, prefix: str) -> Columns:
    return {
        f"{prefix}user_id": dataset.users.take(user),
        f"{prefix}item_id": dataset.items.take(item),
        **_names(dataset.items, item, f"{prefix}item_name"),
    }


def _names(vocabulary: Vocabulary, indices: Int64, column: str) -> Columns:
    if vocabulary.names is None:
        return {}
    return {column: vocabulary.names.take(pa.array(indices))}

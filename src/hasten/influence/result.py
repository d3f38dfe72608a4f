"""Influences as rows: the proponents and opponents of each test, with labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """The rows, and how they were computed (the other keys of the command's JSON object)."""

    table: pa.Table
    about: Mapping[str, Any]

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True, eq=False)
class InfluenceRows:
    """n rows: int64 test (-1: self-influence) and example, kind, rank from 1, influence."""

    test: Int64
    example: Int64
    kind: list[str]
    rank: NDArray[np.int32]
    influence: NDArray[np.float64]


Table = Callable[[InfluenceRows], pa.Table]


def test_rows(proponents: Best, opponents: Best) -> InfluenceRows:
    """For every test its proponents, strongest first, then its opponents."""
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
    return InfluenceRows(
        test[order],
        np.concatenate(examples)[order],
        [KINDS[number] for number in kind[order]],
        rank[order].astype(np.int32),
        _shortest_decimals(np.concatenate(influences)[order]),
    )


def self_rows(norms: Tensor, topk: int | None) -> InfluenceRows:
    """The training examples by their self-influence, largest first."""
    scores = norms.cpu().numpy()
    order = np.argsort(-scores, kind="stable")[:topk]
    rank = np.arange(1, len(order) + 1, dtype=np.int32)
    no_test = np.full(len(order), -1, np.int64)
    return InfluenceRows(
        no_test, order, ["self"] * len(order), rank, _shortest_decimals(scores[order])
    )


def _shortest_decimals(scores: NDArray[Any]) -> NDArray[np.float64]:
    """The shortest decimals that identify the numbers, so that all formats hold the same."""
    return scores.astype(str).astype(np.float64)


def triple_table(
    rows: InfluenceRows, graph: KnowledgeGraph, train: Triples, tests: Triples, method: str
) -> pa.Table:
    """Columns: the test (if any), kind, rank, influence, the training triple, method."""
    columns: Columns = {}
    if len(tests):
        columns["test"] = rows.test + 1
        columns |= _triples(graph, tests.take(rows.test), "test_")
    columns |= _scores(rows)
    columns |= _triples(graph, train.take(rows.example), "")
    return pa.table({**columns, "method": [method] * len(rows.rank)})


def event_table(
    rows: InfluenceRows,
    dataset: Dataset,
    events: tuple[Int64, Int64, Int64],
    tests: tuple[Int64, Int64] | None,
    method: str,
) -> pa.Table:
    """The same for interactions.

    events: user, item and position (from 0) of each row's training interaction.
    """
    columns: Columns = {}
    if tests is not None:
        columns["test"] = rows.test + 1
        columns |= _events(dataset, tests[0][rows.test], tests[1][rows.test], "test_")
    columns |= _scores(rows)
    columns |= _events(dataset, events[0], events[1], "")
    columns["position"] = events[2] + 1
    return pa.table({**columns, "method": [method] * len(rows.rank)})


def _scores(rows: InfluenceRows) -> Columns:
    return {"kind": rows.kind, "rank": rows.rank, "influence": rows.influence}


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

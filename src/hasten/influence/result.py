"""Influence scores as table rows: the proponents and opponents of each test example."""

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


def influence_table(rows: InfluenceRows, tests: Columns, train: Columns, method: str) -> pa.Table:
    """Columns: the test (if any), kind, rank, influence, the training example, method.

    tests, train: the columns that describe the examples of each row.
    """
    columns: Columns = {"test": rows.test + 1, **tests} if tests else {}
    columns |= {"kind": rows.kind, "rank": rows.rank, "influence": rows.influence}
    return pa.table({**columns, **train, "method": [method] * len(rows.rank)})


def triple_columns(graph: KnowledgeGraph, triples: Triples, prefix: str = "") -> Columns:
    """Labels of triples, and names where the graph has them."""
    parts = (
        (f"{prefix}head", graph.entities, triples.head),
        (f"{prefix}relation", graph.relations, triples.relation),
        (f"{prefix}tail", graph.entities, triples.tail),
    )
    columns: Columns = {name: vocabulary.take(indices) for name, vocabulary, indices in parts}
    for name, vocabulary, indices in parts:
        columns |= _names(vocabulary, indices, f"{name}_name")
    return columns


def event_columns(dataset: Dataset, user: Int64, item: Int64, prefix: str = "") -> Columns:
    """Labels of interactions, and names where the items have them."""
    return {
        f"{prefix}user_id": dataset.users.take(user),
        f"{prefix}item_id": dataset.items.take(item),
        **_names(dataset.items, item, f"{prefix}item_name"),
    }


def _names(vocabulary: Vocabulary, indices: Int64, column: str) -> Columns:
    if vocabulary.names is None:
        return {}
    return {column: vocabulary.names.take(pa.array(indices))}

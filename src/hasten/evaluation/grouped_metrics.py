"""Metrics of groups: by relation and direction (head or tail prediction), and by leakage.

The metric of a group is the mean (``amri``: the ratio of sums) over its targets. The overall metric
is the mean of disjoint groups, weighted by their numbers of targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hasten.data.audit import audit
from hasten.data.tables import PART_NAMES, AnyDataset, KnowledgeGraph
from hasten.errors import UsageError
from hasten.evaluation.completion import CompletionTask
from hasten.evaluation.metrics import Float64, PerQuery
from hasten.evaluation.protocols import AnyTask
from hasten.evaluation.ranker import metric_values, query_values
from hasten.ops.ranking.rank_all import RankCounts

By = Literal["relation", "direction", "leakage"]
BY: tuple[By, ...] = ("relation", "direction", "leakage")
DIRECTIONS = ("tail", "head", "both")


def check_grouping(by: str, dataset: AnyDataset) -> None:
    """Raise UsageError if these data cannot be grouped like this (option ``--by``)."""
    if by not in BY:
        raise UsageError(f"--by {by}: must be relation, direction or leakage")
    if by != "leakage" and not isinstance(dataset, KnowledgeGraph):
        raise UsageError(
            f"--by {by} is for knowledge graphs; this run ranks items for users: use --by leakage"
        )


def grouped_metrics(
    task: AnyTask, ranks: RankCounts, metrics: Sequence[str], dataset: AnyDataset, by: By
) -> pa.Table:
    """A table with a row for each group that has targets (:func:`check_grouping`).

    By relation and direction, the most frequent relation first: part; relation and relation_name
    (by relation, if known); direction (``tail``, ``head`` or ``both``); targets, the number of
    ranked targets; one float64 column for each metric.
    """
    if by == "leakage":
        return _by_leakage(task, ranks, metrics, dataset)
    graph = dataset
    assert isinstance(graph, KnowledgeGraph)
    assert isinstance(task, CompletionTask)
    count = len(graph.relations) if by == "relation" else 1
    directed = np.repeat(task.queries.relation, task.targets.lengths)
    relation = directed % len(graph.relations) if by == "relation" else np.zeros_like(directed)
    for_head = (directed >= len(graph.relations)).astype(np.int64)
    # columns: tail, head, and the sum of both
    group = relation * 2 + for_head

    def sums(values: Float64) -> Float64:
        found = np.bincount(group, weights=values, minlength=2 * count).reshape(count, 2)
        return np.concatenate([found, found.sum(1, keepdims=True)], axis=1)

    targets = sums(np.ones(len(group)))
    order = np.argsort(-targets[:, 2], kind="stable")
    rows, columns = np.nonzero(targets[order] > 0)
    rows = order[rows]
    table: dict[str, object] = {"part": [task.protocol.part] * len(rows)}
    if by == "relation":
        table["relation"] = graph.relations.take(rows)
        if graph.relations.names is not None:
            table["relation_name"] = graph.relations.names.take(pa.array(rows))
    table["direction"] = [DIRECTIONS[column] for column in columns]
    table["targets"] = targets[rows, columns].astype(np.int64)
    for name, found in metric_values(task, ranks, metrics, task.masked).items():
        weight = sums(found.counts.astype(np.float64))[rows, columns]
        mean = np.full(len(rows), np.nan)
        np.divide(sums(found.sums)[rows, columns], weight, out=mean, where=weight > 0)
        table[name] = mean
    return pa.table(table)


def _by_leakage(
    task: AnyTask, ranks: RankCounts, metrics: Sequence[str], dataset: AnyDataset
) -> pa.Table:
    """A row for all queries, and for each finding one for the affected queries and the others.

    Columns: part; finding; affected (``yes``, ``no``, or empty for all); queries, of which link
    prediction has two for each triple; share, of the queries; share_of_METRIC, what these queries
    contribute to the first metric; the metrics.
    """
    found = query_values(task, ranks, metrics)
    first = next(iter(found))
    total = float(found[first].sums.sum())
    example = task.triple if isinstance(task, CompletionTask) else task.queries.user
    audited = audit(dataset, PART_NAMES.index(task.protocol.part))
    groups = [("all", "", np.ones(len(example), bool))]
    for name, mask in audited.findings.items():
        chosen = mask[example]
        if chosen.any():
            groups += [(name, "yes", chosen), (name, "no", ~chosen)]
    rows: list[dict[str, Any]] = []
    for name, affected, chosen in groups:
        values = {
            metric: PerQuery(each.sums[chosen], each.counts[chosen])
            for metric, each in found.items()
        }
        share = float(values[first].sums.sum()) / total if total else np.nan
        rows.append(
            {"part": task.protocol.part, "finding": name, "affected": affected}
            | {"queries": int(chosen.sum()), "share": float(chosen.mean())}
            | {f"share_of_{first}": share}
            | {metric: per_query.mean() for metric, per_query in values.items()}
        )
    return pa.Table.from_pylist(rows)

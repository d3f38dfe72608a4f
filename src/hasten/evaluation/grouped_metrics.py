"""Metrics by group: relation, direction, popularity, history length, leakage.

The metric of a group is the mean (``amri``: the ratio of sums) over its targets. The overall metric
is the mean of disjoint groups, weighted by their numbers of targets. By popularity, a group has
only some of a query's targets: the others are not counted, and compete like any candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from hasten.data.audit import audit
from hasten.data.tables import PART_NAMES, AnyDataset, Dataset, KnowledgeGraph
from hasten.errors import UsageError
from hasten.evaluation.completion import CompletionTask
from hasten.evaluation.metrics import Float64, PerQuery
from hasten.evaluation.popularity import GROUPS, popularity, popularity_groups
from hasten.evaluation.protocols import AnyTask, RankingTask
from hasten.evaluation.ranker import values_by_query, values_of_one_treatment
from hasten.ops.ranking.rank_all import RankCounts

By = Literal["popularity", "history", "relation", "direction", "leakage"]
BY: tuple[By, ...] = ("popularity", "history", "relation", "direction", "leakage")
#: the shortest histories of the groups by length
_LENGTHS = (1, 5, 10, 20, 50, 100)
DIRECTIONS = ("tail", "head", "both")


def check_grouping(by: str, dataset: AnyDataset) -> None:
    """Raise UsageError if these data cannot be grouped like this (option ``--by``)."""
    if by not in BY:
        raise UsageError(f"--by {by}: must be {', '.join(BY[:-1])} or {BY[-1]}")
    graph = isinstance(dataset, KnowledgeGraph)
    if by in ("relation", "direction") and not graph:
        raise UsageError(
            f"--by {by} is for knowledge graphs; this run ranks items for users: use --by "
            "popularity, history or leakage"
        )
    if by in ("popularity", "history") and graph:
        raise UsageError(
            f"--by {by} is for items of users; this run completes a knowledge graph: use --by "
            "relation, direction or leakage"
        )


def grouped_metrics(
    task: AnyTask, ranks: RankCounts, metrics: Sequence[str], dataset: AnyDataset, by: By
) -> pa.Table:
    """A table with a row for each group that has targets (:func:`check_grouping`).

    By popularity (of the target: :data:`hasten.evaluation.popularity.GROUPS`) and history (its
    number of events): part, group, targets. By relation and direction, the most frequent relation
    first: part; relation and relation_name (by relation, if known); direction (``tail``, ``head``
    or ``both``); targets. Targets is the number of ranked targets; a float64 column for each metric
    follows.
    """
    if by == "leakage":
        return _by_leakage(task, ranks, metrics, dataset)
    if by in ("popularity", "history"):
        assert isinstance(task, RankingTask)
        assert isinstance(dataset, Dataset)
        groups = (_of_targets if by == "popularity" else _of_histories)(task, dataset)
        return _by_target(task, ranks, metrics, groups)
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
        by_group = np.bincount(group, weights=values, minlength=2 * count).reshape(count, 2)
        return np.concatenate([by_group, by_group.sum(1, keepdims=True)], axis=1)

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
    for name, per_query in values_of_one_treatment(task, ranks, metrics, task.masked).items():
        weight = sums(per_query.counts.astype(np.float64))[rows, columns]
        mean = np.full(len(rows), np.nan)
        np.divide(sums(per_query.sums)[rows, columns], weight, out=mean, where=weight > 0)
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
    by_metric = values_by_query(task, ranks, metrics)
    first = next(iter(by_metric))
    total = float(by_metric[first].sums.sum())
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
            for metric, each in by_metric.items()
        }
        share = float(values[first].sums.sum()) / total if total else np.nan
        rows.append(
            {"part": task.protocol.part, "finding": name, "affected": affected}
            | {"queries": int(chosen.sum()), "share": float(chosen.mean())}
            | {f"share_of_{first}": share}
            | {metric: per_query.mean() for metric, per_query in values.items()}
        )
    return pa.Table.from_pylist(rows)


def _of_targets(task: RankingTask, dataset: Dataset) -> list[tuple[str, NDArray[np.bool_]]]:
    """Groups of the targets [S] by the popularity of the item."""
    group = popularity_groups(popularity(dataset))[task.targets.items]
    return [(name, group == number) for number, name in enumerate(GROUPS)]


def _of_histories(task: RankingTask, _: Dataset) -> list[tuple[str, NDArray[np.bool_]]]:
    """Groups of the targets [S] by the length of the history."""
    group = np.searchsorted(_LENGTHS, task.queries.lengths, "right")[task.targets.rows] - 1
    ends = [f"{low} to {end - 1}" for low, end in pairwise(_LENGTHS)]
    names = [*ends, f"{_LENGTHS[-1]} and more"]
    return [(f"{name} events", group == number) for number, name in enumerate(names)]


def _by_target(
    task: RankingTask,
    ranks: RankCounts,
    metrics: Sequence[str],
    groups: Sequence[tuple[str, NDArray[np.bool_]]],
) -> pa.Table:
    """A row for each group of targets that is not empty: part, group, targets, the metrics."""
    rows: list[dict[str, Any]] = []
    for name, chosen in groups:
        if not chosen.any():
            continue
        last = None if task.rank_last is None else task.rank_last[chosen]
        chosen_task = replace(task, targets=task.targets.keep(chosen), rank_last=last)
        mask = torch.from_numpy(chosen)
        counts = RankCounts(*(each.cpu()[mask] for each in vars(ranks).values()))
        values = values_of_one_treatment(chosen_task, counts, metrics, task.masked)
        rows.append(
            {"part": task.protocol.part, "group": name, "targets": int(chosen.sum())}
            | {metric: per_query.mean() for metric, per_query in values.items()}
        )
    return pa.Table.from_pylist(rows)

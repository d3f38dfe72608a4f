"""Metrics of tied and leaked examples: against the evaluation of these examples alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hasten.config import EvaluationOptions
from hasten.data.audit import audit
from hasten.data.tables import TEST, VALID, Dataset
from hasten.evaluation.completion import completion_task
from hasten.evaluation.grouped_metrics import grouped_metrics
from hasten.evaluation.protocols import ranking_task
from hasten.evaluation.ranker import evaluate
from tests.data.test_audit import leaking_graph
from tests.evaluation.test_completion import NAMES, Rounded
from tests.evaluation.test_ranker import CPU, METRICS, Mean


def timed(dataset: Dataset) -> Dataset:
    """With times of which every other one repeats the one before."""
    time = np.arange(len(dataset.interactions)) // 2
    return replace(dataset, interactions=replace(dataset.interactions, time=time))


@pytest.mark.parametrize("part", [VALID, TEST])
def test_users_without_ties_are_those_of_the_option(dataset: Dataset, part: int) -> None:
    dataset, model = timed(dataset), Mean(len(dataset.items))
    task = ranking_task(dataset, part, EvaluationOptions(), 0)
    whole = evaluate(model, task, METRICS, device=CPU)
    rows = grouped_metrics(task, whole.rank_counts, METRICS, dataset, "leakage").to_pylist()
    found = {(row["finding"], row["affected"]): row for row in rows}
    assert {name: found["all", ""][name] for name in whole.values} == whole.values
    untied = ranking_task(dataset, part, EvaluationOptions(users="untied"), 0)
    alone = evaluate(model, untied, METRICS, device=CPU)
    values = {name: found["tied in time", "no"][name] for name in alone.values}
    assert values == pytest.approx(alone.values, rel=1e-12)
    assert found["tied in time", "yes"]["queries"] == task.protocol.tied == untied.protocol.untied
    assert f", {task.protocol.tied} of 700 users with ties in time" in task.protocol.text()
    for finding in {row["finding"] for row in rows} - {"all"}:
        yes, no = found[finding, "yes"], found[finding, "no"]
        assert yes["queries"] + no["queries"] == 700
        first = METRICS[0]
        total = yes["queries"] * yes[first] + no["queries"] * no[first]
        assert total == pytest.approx(700 * whole.values[first])
        share = yes["queries"] * yes[first] / total
        assert yes[f"share_of_{first}"] == pytest.approx(share) == 1 - no[f"share_of_{first}"]
        assert yes["share"] == yes["queries"] / 700


def test_triples_are_those_of_a_graph_without_the_others() -> None:
    graph, model = leaking_graph(), Rounded()
    task = completion_task(graph, TEST, EvaluationOptions())
    whole = evaluate(model, task, NAMES, device=CPU)
    rows = grouped_metrics(task, whole.rank_counts, NAMES, graph, "leakage").to_pylist()
    counts = whole.rank_counts.masked()
    rank = (1 + counts.higher + counts.tied / 2).double().numpy()
    triples = audit(graph, TEST).findings
    expected = {("all", ""): np.ones(len(rank), bool)}
    for name, mask in triples.items():
        if mask.any():
            expected |= {(name, "yes"): mask[task.triple], (name, "no"): ~mask[task.triple]}
    assert {(row["finding"], row["affected"]) for row in rows} == set(expected)
    for row in rows:
        mine = rank[expected[row["finding"], row["affected"]]]
        assert row["queries"] == len(mine)
        if len(mine):
            assert row["mrr"] == pytest.approx((1 / mine).mean())
            assert row["hits@3"] == pytest.approx((mine <= 3).mean())
            assert row["mr"] == pytest.approx(mine.mean())
            share = (1 / mine).sum() / (1 / rank).sum()
            assert row["share_of_mrr"] == pytest.approx(share)


def test_the_protocol_names_inverse_leaks() -> None:
    graph = leaking_graph()
    assert "inverse" not in completion_task(graph, TEST, EvaluationOptions()).protocol.text()
    counted = replace(graph, source=graph.source.plus(inverse_leaks_in_test=3))
    said = completion_task(counted, TEST, EvaluationOptions()).protocol.text()
    assert said.endswith("realistic ties, 3 triples of test with an inverse in train")

"""Metrics by relation and direction: against one triple at a time, and against the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.config import EvaluationOptions
from hasten.data.tables import TEST, VALID
from hasten.errors import UsageError
from hasten.evaluation.completion import completion_task
from hasten.evaluation.grouped_metrics import check_grouping, grouped_metrics
from hasten.evaluation.ranker import evaluate
from tests.evaluation.test_completion import CPU, ENTITIES, NAMES, RELATIONS, Rounded, make_graph


def ranks_by_hand(model, graph, part) -> dict[tuple[str, str], list[tuple[float, int]]]:
    """(rank, rivals) of every triple, by relation and direction, from dense rows of scores."""
    columns = (graph.triples.head, graph.triples.relation, graph.triples.tail)
    facts = list(zip(*(column.tolist() for column in columns), strict=True))
    known, found = set(facts), {}
    for number in np.flatnonzero(graph.part == part):
        head, relation, tail = facts[number]
        for direction in ("tail", "head"):
            tails = direction == "tail"
            given = (head, relation) if tails else (tail, relation + RELATIONS)
            answer = tail if tails else head
            with torch.no_grad():
                vector = model.vectors(*(torch.tensor([end]) for end in given))[0]
                scores = (model.entities.weight @ vector + model.bias).tolist()
            rivals = [
                scores[e] for e in range(ENTITIES)
                if e != answer
                and ((head, relation, e) if tails else (e, relation, tail)) not in known
            ]  # fmt: skip
            greater = sum(s > scores[answer] for s in rivals)
            equal = sum(s == scores[answer] for s in rivals)
            if graph.rank_last[number]:
                greater, equal = len(rivals), 0
            key = (f"r{relation}", direction)
            found.setdefault(key, []).append((1 + greater + equal / 2, len(rivals)))
    return found


def metrics_by_hand(pairs) -> dict[str, float]:
    rank = np.array([rank for rank, _ in pairs])
    rivals = np.array([rivals for _, rivals in pairs])
    values = {f"hits@{k}": float((rank <= k).mean()) for k in (1, 3, 10)}
    amri = 1 - (rank - 1).sum() / (rivals / 2).sum()
    return {"mrr": float((1 / rank).mean()), "mr": float(rank.mean()), "amri": amri, **values}


@pytest.mark.parametrize(("part", "rank_last"), [(VALID, False), (TEST, False), (TEST, True)])
def test_groups_equal_one_triple_at_a_time(part, rank_last):
    model, graph = Rounded(), make_graph(rank_last)
    task = completion_task(graph, part, EvaluationOptions())
    whole = evaluate(model, task, NAMES, device=CPU)
    by_hand = ranks_by_hand(model, graph, part)
    expected = {}
    for (relation, direction), pairs in by_hand.items():
        expected.setdefault((relation, direction), []).extend(pairs)
        expected.setdefault((relation, "both"), []).extend(pairs)
    found = grouped_metrics(task, whole.rank_counts, NAMES, graph, "relation").to_pylist()
    assert {(row["relation"], row["direction"]) for row in found} == set(expected)
    for row in found:
        pairs = expected[row["relation"], row["direction"]]
        assert row["targets"] == len(pairs)
        assert row["part"] == task.protocol.part
        values = {name: row[name] for name in NAMES}
        assert values == pytest.approx(metrics_by_hand(pairs), rel=1e-12)
    both = [row["targets"] for row in found if row["direction"] == "both"]
    assert both == sorted(both, reverse=True)
    ways = grouped_metrics(task, whole.rank_counts, NAMES, graph, "direction").to_pylist()
    assert [row["direction"] for row in ways] == ["tail", "head", "both"]
    for row in ways:
        pairs = [
            p for key, of in by_hand.items() for p in of if row["direction"] in (key[1], "both")
        ]
        assert {name: row[name] for name in NAMES} == pytest.approx(metrics_by_hand(pairs))
    assert {name: ways[-1][name] for name in NAMES} == pytest.approx(whole.values, rel=1e-12)
    assert "relation" not in ways[0]


def test_only_knowledge_graphs_are_divided():
    with pytest.raises(
        UsageError, match="must be popularity, history, relation, direction or leakage"
    ):
        check_grouping("entity", make_graph())
    with pytest.raises(UsageError, match="is for knowledge graphs"):
        check_grouping("relation", object())

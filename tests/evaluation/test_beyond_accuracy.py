"""Figures of recommended lists against sets and loops; metrics of groups against the whole."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from hasten.config import EvaluationOptions
from hasten.data.tables import TEST, TRAIN, VALID, Dataset
from hasten.errors import UsageError
from hasten.evaluation.beyond_accuracy import beyond_accuracy, recommended_lists
from hasten.evaluation.grouped_metrics import check_grouping, grouped_metrics
from hasten.evaluation.popularity import GROUPS, popularity, popularity_groups
from hasten.evaluation.protocols import RankingTask, recommendation_task
from hasten.evaluation.ranker import evaluate, scoring, values_of_one_treatment
from hasten.ops.graph.csr import CSR
from tests.evaluation.test_ranker import Mean

CPU = torch.device("cpu")


def random_lists(task: RankingTask, k: int) -> CSR:
    """Lists of 0 to k items that are not masked."""
    rng = np.random.default_rng(1)
    rows = []
    for query in range(len(task.queries)):
        hidden = [] if task.excluded is None or not task.masked else task.excluded.row(query)
        free = np.setdiff1d(np.arange(task.item_count), hidden)
        chosen = rng.choice(free[: 10 + query % 50], rng.integers(0, k + 1), replace=False)
        rows.append(chosen)
    lengths = [len(row) for row in rows]
    return CSR(np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(rows))


def by_hand(lists: CSR, task: RankingTask, dataset: Dataset, k: int) -> dict[str, float]:
    """The definitions, user by user."""
    users_of: dict[int, set[int]] = {item: set() for item in range(len(dataset.items))}
    events = dataset.interactions
    for user, item, part in zip(events.user, events.item, dataset.part, strict=True):
        if part == TRAIN:
            users_of[int(item)].add(int(user))
    users = len(set().union(*users_of.values()))
    found: dict[str, list[float]] = {name: [] for name in ("n", "d", "p", "h", "s")}
    seen: set[int] = set()
    ranked = sorted(users_of, key=lambda item: (-len(users_of[item]), item))
    for query in range(len(lists)):
        items = lists.row(query).tolist()
        seen |= set(items)
        past = task.queries.history.take(np.array([query])).items.tolist()
        hidden = (
            set() if task.excluded is None or not task.masked else set(task.excluded.row(query))
        )
        popular = [item for item in ranked if item not in hidden][:k]
        wanted = set(task.targets.row(query).tolist())
        found["s"].append(len(set(items) & wanted - set(popular)) / k)
        found["h"].append(np.mean([len(users_of[item]) for item in past]))
        if items:
            found["n"].append(
                np.mean([-math.log2(max(len(users_of[item]), 1) / users) for item in items])
            )
            found["p"].append(np.mean([len(users_of[item]) for item in items]))
        if len(items) > 1:
            distances = []
            for one, other in combinations(items, 2):
                scale = math.sqrt(len(users_of[one]) * len(users_of[other]))
                common = len(users_of[one] & users_of[other])
                distances.append(1 - (common / scale if scale else 0))
            found["d"].append(np.mean(distances))
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    return {
        f"coverage@{k}": len(seen) / len(dataset.items),
        f"novelty@{k}": mean["n"],
        f"diversity@{k}": mean["d"],
        f"popularity@{k}": mean["p"],
        f"popularity_lift@{k}": mean["p"] / mean["h"] - 1,
        f"serendipity@{k}": mean["s"],
    }


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("part", [VALID, TEST])
def test_figures_equal_their_definitions(
    dataset: Dataset, part: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasten.evaluation.beyond_accuracy._USERS", 64)  # several blocks
    task = recommendation_task(dataset, part, EvaluationOptions(mask_history=masked), 0)
    lists = random_lists(task, 7)
    found = beyond_accuracy(lists, task, dataset, 7)
    assert found == pytest.approx(by_hand(lists, task, dataset, 7), rel=1e-12)
    assert found["serendipity@7"] > 0


@pytest.mark.parametrize(
    "options",
    [{"mask_history": True}, {"mask_history": False}, {"candidates": "uni100"},
     {"candidates": "trained"}],
)  # fmt: skip
def test_lists_are_the_best_candidates(dataset: Dataset, options: dict[str, object]) -> None:
    model = Mean(len(dataset.items))
    task = recommendation_task(dataset, VALID, EvaluationOptions(**options), 0)
    lists = recommended_lists(model, task, 5)
    with scoring(model):
        scores = model.scorer(task.queries).block(0, task.item_count).numpy().copy()
    history = task.queries.history
    for query, row in enumerate(scores):
        if task.masked or task.candidates is not None:
            row[history.items[history.offsets[query] : history.offsets[query + 1]]] = -np.inf
        if task.subset is not None:
            row[~task.subset] = -np.inf
        best = np.lexsort((np.arange(len(row)), -row))[:5]
        assert np.array_equal(np.sort(row[lists.row(query)]), np.sort(row[best]))


def test_without_events_there_is_nothing_to_average(dataset: Dataset) -> None:
    task = recommendation_task(dataset, VALID, EvaluationOptions(), 0)
    empty = CSR(np.zeros(len(task.queries) + 1, np.int64), np.zeros(0, np.int64))
    found = beyond_accuracy(empty, task, dataset, 3)
    assert found["coverage@3"] == found["serendipity@3"] == 0
    assert math.isnan(found["novelty@3"])
    assert math.isnan(found["diversity@3"])


def test_popularity_groups_are_shares_of_the_trained_items() -> None:
    groups = popularity_groups(np.array([0, 5, 1, 9, 3, 4]))
    assert [GROUPS[group] for group in groups] == [
        "not in training", GROUPS[1], "least popular 20 %", "most popular 20 %", GROUPS[1],
        GROUPS[1],
    ]  # fmt: skip
    assert popularity_groups(np.zeros(3, np.int64)).tolist() == [3, 3, 3]


@pytest.mark.parametrize("by", ["popularity", "history"])
def test_one_target_a_user_gives_groups_that_average_to_the_whole(
    dataset: Dataset, by: str
) -> None:
    task = recommendation_task(dataset, TEST, EvaluationOptions(), 0)
    metrics = ("ndcg@10", "mrr", "hits@5", "amri")
    found = evaluate(Mean(len(dataset.items)), task, metrics, device=CPU)
    assert found.rank_counts is not None
    rows = grouped_metrics(task, found.rank_counts, metrics, dataset, by).to_pylist()
    assert sum(row["targets"] for row in rows) == len(task.targets.items)
    for name in metrics[:3]:
        mean = sum(row[name] * row["targets"] for row in rows) / len(task.targets.items)
        assert mean == pytest.approx(found.values[name], rel=1e-12)
    values = values_of_one_treatment(task, found.rank_counts, metrics, task.masked)[
        "ndcg@10"
    ].values
    group = popularity_groups(popularity(dataset))[task.targets.items]
    if by == "popularity":
        assert rows[0]["ndcg@10"] == pytest.approx(values[group == 0].mean(), rel=1e-12)
    else:
        few = values[task.queries.lengths < 5]
        assert rows[0]["group"] == "1 to 4 events"
        assert rows[0]["ndcg@10"] == pytest.approx(few.mean(), rel=1e-12)


def test_groups_need_items(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="popularity, history or leakage"):
        check_grouping("relation", dataset)

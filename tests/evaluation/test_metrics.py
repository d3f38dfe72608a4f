"""Metrics against torchmetrics, scikit-learn and their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score
from torchmetrics.retrieval import (
    RetrievalHitRate,
    RetrievalMAP,
    RetrievalMRR,
    RetrievalNormalizedDCG,
    RetrievalPrecision,
    RetrievalRecall,
)

from hasten.errors import ConfigurationError
from hasten.evaluation.metrics import (
    Metric,
    PerQuery,
    higher_is_better,
    metrics_per_query,
    parse_metric,
)
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.lists import RankingLists
from hasten.ops.ranking.rank_all import rank_all

QUERIES, ITEMS = 60, 40


class Matrix:
    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.scores[:, start:stop].clone()


@pytest.fixture(scope="module")
def relevant() -> np.ndarray:
    rng = np.random.default_rng(3)
    relevant = rng.random((QUERIES, ITEMS)) < 0.15
    relevant[np.arange(QUERIES), rng.integers(0, ITEMS, QUERIES)] = True
    return relevant


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    # from 1: the oracle's recall leaves out targets that score 0 or less
    row = np.arange(1, ITEMS + 1, dtype=np.float32)
    return np.random.default_rng(4).permuted(np.tile(row, (QUERIES, 1)), axis=1)


def ours(names: list[str], scores: np.ndarray, relevant: np.ndarray) -> dict[str, float]:
    offsets = np.concatenate([[0], np.cumsum(relevant.sum(1))]).astype(np.int64)
    targets = CSR(offsets, np.nonzero(relevant)[1].astype(np.int64))
    ranks = rank_all(Matrix(torch.from_numpy(scores)), scores.shape[1], RankingLists.of(targets))
    found = metrics_per_query(names, offsets, ranks.higher.numpy(), ranks.tied.numpy())
    return {name: metric.mean() for name, metric in found.items()}


@pytest.mark.parametrize("k", [1, 5, 10, 40])
def test_against_torchmetrics(scores: np.ndarray, relevant: np.ndarray, k: int) -> None:
    oracles = {
        f"ndcg@{k}": RetrievalNormalizedDCG(top_k=k),
        f"hr@{k}": RetrievalHitRate(top_k=k),
        f"recall@{k}": RetrievalRecall(top_k=k),
        f"precision@{k}": RetrievalPrecision(top_k=k),
        f"mrr@{k}": RetrievalMRR(top_k=k),
        "mrr": RetrievalMRR(),
        f"map@{ITEMS}": RetrievalMAP(),
    }
    found = ours(list(oracles), scores, relevant)
    index = torch.arange(QUERIES)[:, None].expand(QUERIES, ITEMS)
    for name, oracle in oracles.items():
        wanted = oracle(torch.from_numpy(scores), torch.from_numpy(relevant), indexes=index)
        assert found[name] == pytest.approx(float(wanted), abs=1e-6), name


def test_against_scikit_learn(scores: np.ndarray, relevant: np.ndarray) -> None:
    found = ours([f"map@{ITEMS}", "ndcg@10", "ndcg@40"], scores, relevant)
    precisions = [average_precision_score(r, s) for r, s in zip(relevant, scores, strict=True)]
    assert found[f"map@{ITEMS}"] == pytest.approx(np.mean(precisions), abs=1e-12)
    assert found["ndcg@10"] == pytest.approx(ndcg_score(relevant, scores, k=10), abs=1e-12)
    assert found["ndcg@40"] == pytest.approx(ndcg_score(relevant, scores, k=40), abs=1e-12)


def by_definition(name: str, ranks: list[float]) -> tuple[float, int]:
    """(sum, count) of one query, written out."""
    kind, _, cut = name.partition("@")
    k = int(cut) if cut else math.inf
    ranks = sorted(ranks)
    near = [(i, r) for i, r in enumerate(ranks, 1) if r <= k and i <= k]
    if kind == "hits":
        return float(sum(r <= k for r in ranks)), len(ranks)
    if kind == "mr":
        return sum(ranks), len(ranks)
    if not ranks:
        return 0.0, 0
    most = min(len(ranks), k)
    value = {
        "hr": float(bool(near)),
        "recall": len(near) / len(ranks),
        "precision": len(near) / k,
        "mrr": 1 / ranks[0] if ranks[0] <= k else 0.0,
        "map": sum(i / r for i, r in near) / most,
        "ndcg": sum(1 / math.log2(1 + r) for _, r in near)
        / sum(1 / math.log2(1 + i) for i in range(1, len(ranks) + 1) if i <= k),
    }[kind]
    return value, 1


NAMES = [f"{kind}@{k}" for kind in ("ndcg", "hr", "recall", "precision", "map", "hits", "mrr")
         for k in (1, 3, 10)] + ["mrr", "mr"]  # fmt: skip


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=5),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=200, deadline=None)
def test_matches_the_definitions(queries: list[list[tuple[int, int]]]) -> None:
    offsets = np.cumsum([0, *map(len, queries)], dtype=np.int64)
    pairs = np.array([pair for query in queries for pair in query], np.int64).reshape(-1, 2)
    found = metrics_per_query(NAMES, offsets, pairs[:, 0], pairs[:, 1])
    for name in NAMES:
        for query, pair_list in enumerate(queries):
            value, count = by_definition(name, [1 + g + e / 2 for g, e in pair_list])
            assert found[name].sums[query] == pytest.approx(value, abs=1e-12), name
            assert found[name].counts[query] == count


@given(st.integers(1, 6), st.integers(1, 8), st.data())
@settings(max_examples=200, deadline=None)
def test_no_tie_lifts_a_metric_above_one(queries: int, items: int, data: st.DataObject) -> None:
    cells = st.lists(st.integers(0, 2), min_size=queries * items, max_size=queries * items)
    scores = np.array(data.draw(cells), np.float32).reshape(queries, items)
    relevant = np.array(data.draw(cells)).reshape(queries, items) > 0
    relevant[:, 0] = True
    names = [name for name in NAMES if name != "mr"]
    for name, value in ours(names, scores, relevant).items():
        assert 0 <= value <= 1 + 1e-12, name


def test_a_constant_model_is_judged_as_a_random_one() -> None:
    relevant = np.eye(QUERIES, 101, dtype=bool)
    found = ours(["hr@10", "mrr", "mr"], np.zeros((QUERIES, 101), np.float32), relevant)
    assert found == {"hr@10": 0.0, "mrr": pytest.approx(1 / 51), "mr": 51.0}


def test_values_are_the_metric_of_each_query() -> None:
    offsets = np.array([0, 2, 2, 3])
    found = metrics_per_query(
        ["hits@1", "recall@1"], offsets, np.array([0, 5, 2]), np.zeros(3, int)
    )
    for metric in found.values():
        np.testing.assert_array_equal(metric.values, [0.5, np.nan, 0.0])
    assert found["hits@1"].mean() == pytest.approx(1 / 3)
    assert found["recall@1"].mean() == pytest.approx(1 / 4)
    empty = metrics_per_query(["mrr"], np.zeros(1, np.int64), np.empty(0, int), np.empty(0, int))
    assert math.isnan(empty["mrr"].mean())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ncdg@10", "did you mean 'ndcg@10'"),
        ("NDCG@20", "did you mean 'ndcg@20'"),
        ("accuracy", "there are: ndcg@k, "),
        ("ndcg", "did you mean 'ndcg@10'"),
        ("mr@10", "did you mean 'mr'"),
        ("hr@0", "whole number from 1"),
        ("hr@ten", "whole number from 1"),
        ("hr@", "whole number from 1"),
        ("hr@1e9", "whole number from 1"),
    ],
)
def test_unknown_metrics_are_refused_with_the_nearest_name(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match="metric") as error:
        parse_metric(name)
    assert says in str(error.value)
    assert repr(name) in str(error.value)


def test_names_are_parsed() -> None:
    assert parse_metric("ndcg@10") == Metric("ndcg", 10)
    assert parse_metric("mrr") == Metric("mrr", None)
    assert [str(parse_metric(name)) for name in ("mrr@5", "mr")] == ["mrr@5", "mr"]
    assert higher_is_better("ndcg@10")
    assert not higher_is_better("mr")


def test_legacy_ndcg_divides_by_the_hits_it_found() -> None:
    """What the published code of KGAT computes: DCG of the list over that of the list sorted."""
    offsets = np.array([0, 3, 5, 6])
    ranks = np.array([2, 5, 30, 40, 50, 1])  # of 3, 2 and 1 targets
    found = metrics_per_query(
        ["ndcg_kgat_legacy@20", "ndcg@20"], offsets, ranks - 1, np.zeros(6, np.int64)
    )
    gains = 1 / np.log2(3) + 1 / np.log2(6)
    best_of_two = 1 + 1 / np.log2(3)
    assert found["ndcg_kgat_legacy@20"].values == pytest.approx([gains / best_of_two, 0.0, 1.0])
    assert found["ndcg@20"].values[0] == pytest.approx(gains / (best_of_two + 0.5))


def test_the_margin_is_that_of_the_mean_of_a_sample():
    random = np.random.default_rng(0)
    values = random.random((400, 1000))
    per_query = [PerQuery(row, np.ones(1000, np.int64)) for row in values]
    inside = [abs(each.mean() - 0.5) <= each.margin() for each in per_query]
    assert 0.92 < np.mean(inside) < 0.98
    assert PerQuery(np.full(5, 0.3), np.ones(5, np.int64)).margin() < 1e-12

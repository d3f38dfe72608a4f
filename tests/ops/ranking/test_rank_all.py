"""rank_all and rank_among against their definitions, and what they promise about ties and NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hasten.ops.graph.csr import CSR
from hasten.ops.ranking import column_blocks as blocks_module
from hasten.ops.ranking.lists import RankingLists
from hasten.ops.ranking.rank_all import rank_all, rank_among
from hasten.scoring import Catalog, FactorScorer
from tests.ops.reference import rank_all_reference


class Matrix:
    """A scorer that reads its scores from a matrix, and remembers which blocks were asked for."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.asked: list[tuple[int, int]] = []

    def block(self, start: int, stop: int) -> Tensor:
        self.asked.append((start, stop))
        return self.scores[:, start:stop].clone()


class Rows:
    """A dense table as the Table protocol defines it."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def rows(self, ids: Tensor) -> Tensor:
        return self.table[ids]

    def block(self, start: int, stop: int) -> Tensor:
        return self.table[start:stop]

    def __len__(self) -> int:
        return len(self.table)


def csr(rows: list[list[int]]) -> CSR:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return CSR(offsets, np.array([item for row in rows for item in row], np.int64))


VALUES = st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, float("nan"), float("inf"), float("-inf")])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, CSR, CSR | None, int | None]:
    queries, count = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    cells = draw(st.lists(VALUES, min_size=queries * count, max_size=queries * count))
    ids = st.lists(st.integers(0, count - 1), max_size=4)
    lists = st.lists(ids, min_size=queries, max_size=queries)
    one = st.lists(st.integers(0, count - 1), min_size=queries, max_size=queries)
    targets = draw(st.one_of(lists, one.map(lambda row: [[item] for item in row])))
    excluded = draw(st.none() | lists.map(csr))
    columns = draw(st.none() | st.integers(1, count + 2))
    return torch.tensor(cells).view(queries, count), csr(targets), excluded, columns


@given(problems())
@settings(max_examples=400, deadline=None)
def test_matches_the_definition(problem: tuple[Tensor, CSR, CSR | None, int | None]) -> None:
    scores, targets, excluded, columns = problem
    queries, count = scores.shape
    found = rank_all(Matrix(scores), count, RankingLists.of(targets, excluded), columns=columns)
    wanted = rank_all_reference(Matrix(scores), queries, count, targets, excluded)
    assert found.masked().higher.tolist() == wanted.higher.tolist()
    assert found.masked().tied.tolist() == wanted.tied.tolist()
    of_all = rank_all_reference(Matrix(scores), queries, count, targets)
    assert found.higher.tolist() == of_all.higher.tolist()
    assert found.tied.tolist() == of_all.tied.tolist()


def test_against_dense_numpy_on_tied_scores() -> None:
    rng = np.random.default_rng(0)
    queries, count = 64, 3000
    scores = rng.integers(0, 40, (queries, count)).astype(np.float32)
    target = rng.integers(0, count, queries)
    hidden = [
        np.unique(rng.integers(0, count, rng.integers(0, 50))).tolist() for _ in range(queries)
    ]
    lists = RankingLists.of(csr([[t] for t in target]), csr(hidden))
    found = rank_all(Matrix(torch.from_numpy(scores)), count, lists).masked()
    for row in range(queries):
        keep = np.ones(count, bool)
        keep[hidden[row]] = False
        keep[target[row]] = False
        own = scores[row, target[row]]
        assert found.higher[row] == (scores[row, keep] > own).sum()
        assert found.tied[row] == (scores[row, keep] == own).sum()


def test_a_nan_target_ranks_last_and_a_nan_rival_counts_as_higher() -> None:
    scores = torch.tensor([[torch.nan, 1.0, -torch.inf], [2.0, torch.nan, 1.0]])
    found = rank_all(Matrix(scores), 3, RankingLists.of(csr([[0], [0]])))
    assert found.higher.tolist() == [2, 1]
    assert found.tied.tolist() == [0, 0]
    diverged = rank_all(Matrix(torch.full((1, 5), torch.nan)), 5, RankingLists.of(csr([[3]])))
    assert (diverged.higher.item(), diverged.tied.item()) == (4, 0)


def test_an_excluded_target_is_ranked_but_competes_with_no_other() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    found = rank_all(Matrix(scores), 3, RankingLists.of(csr([[0, 2]]), csr([[0]]))).masked()
    assert found.higher.tolist() == [0, 1]


@pytest.mark.parametrize("columns", [None, 512, 1000])
def test_identical_catalog_rows_tie_wherever_they_stand(columns: int | None) -> None:
    torch.manual_seed(0)
    count, copies = 2501, [0, 7, 1023, 1024, 2047, 2499, 2500]
    table = torch.randn(count, 64)
    table[copies] = table[0].clone()
    scorer = FactorScorer(torch.randn(256, 64), Catalog(Rows(table), torch.zeros(count)))
    found = rank_all(scorer, count, RankingLists.of(csr([[2500]] * 256)), columns=columns)
    assert found.tied.tolist() == [len(copies) - 1] * 256


def test_scores_are_computed_once_or_twice_where_targets_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = torch.randn(2, 10)
    once = Matrix(scores)
    rank_all(once, 10, RankingLists.of(csr([[9], [8]])))
    assert once.asked == [(0, 10)]
    monkeypatch.setattr(blocks_module, "WHOLE", 19)
    monkeypatch.setattr(blocks_module, "COLUMNS", 4)
    blocked = Matrix(scores)
    rank_all(blocked, 10, RankingLists.of(csr([[9], [8]])))
    assert blocked.asked == [(8, 10), (0, 4), (4, 8), (8, 10)]


def test_no_targets_give_no_ranks() -> None:
    for columns in (None, 2):
        lists = RankingLists.of(csr([[], [], []]))
        found = rank_all(Matrix(torch.randn(3, 5)), 5, lists, columns=columns)
        assert found.higher.tolist() == found.tied.tolist() == []


@pytest.mark.parametrize("columns", [None, 3])
def test_rank_among_counts_only_the_candidates(columns: int | None) -> None:
    scores = torch.tensor([[5.0, 4.0, 4.0, 9.0, 1.0, torch.nan], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    candidates = torch.tensor([[1, 0, 2, 2, 4, 5], [5, 0, 1, 2, 3, 4]])
    found = rank_among(Matrix(scores), 6, candidates, columns=columns)
    assert found.higher.tolist() == [2, 0]
    assert found.tied.tolist() == [2, 0]
    lost = rank_among(Matrix(scores), 6, torch.tensor([[5, 0, 1], [0, 1, 2]]), columns=columns)
    assert lost.higher.tolist() == [2, 2]


class Listing(FactorScorer):
    """Remembers the blocks and lists that it scored. off: a list scores that much higher."""

    off = 0.0

    def block(self, start: int, stop: int) -> Tensor:
        asked.append((start, stop))
        return super().block(start, stop)

    def listed(self, ids: Tensor) -> Tensor:
        asked.append(len(ids))
        return super().listed(ids) + self.off


asked: list[object] = []


def listing(monkeypatch: pytest.MonkeyPatch, queries: int, count: int) -> Listing:
    monkeypatch.setattr(blocks_module, "WHOLE", 19)
    monkeypatch.setattr(blocks_module, "COLUMNS", 8)
    asked.clear()
    torch.manual_seed(0)
    table = torch.randn(count, 6)
    table[count // 2] = table[1]
    bias = torch.randn(count)
    bias[count // 2] = bias[1]
    return Listing(torch.randn(queries, 6), Catalog(Rows(table), bias))


@pytest.mark.parametrize("off", [0.0, 1e-3])
def test_scores_of_listed_targets_replace_a_second_product_if_they_are_those_of_the_blocks(
    monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    scorer = listing(monkeypatch, 6, 50)
    monkeypatch.setattr(Listing, "off", off)
    targets = csr([[1], [9], [17], [25], [33], [41]])
    lists = RankingLists.of(targets, csr([[1, 3], [], [4], [49], [], []]))
    found = rank_all(scorer, 50, lists)
    blocks = [(start, min(start + 8, 50)) for start in range(0, 50, 8)]
    again = [(0, 8), *blocks[:6], *blocks]  # given up at the first block, then as without lists
    assert asked == ([8, *again] if off else [8, *blocks])
    plain = rank_all(Matrix(FactorScorer.block(scorer, 0, 50)), 50, lists, columns=50)
    for name, counts in vars(found).items():
        assert torch.equal(counts, vars(plain)[name]), name
    assert found.tied.tolist()[0] == 1


def test_candidates_of_a_large_catalog_are_scored_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = listing(monkeypatch, 4, 50)
    candidates = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (4, 9)))
    candidates[:, 0], candidates[:, 3] = 1, 25  # equal rows
    found = rank_among(scorer, 50, candidates)
    assert asked == []
    plain = rank_among(Matrix(FactorScorer.block(scorer, 0, 50)), 50, candidates)
    assert torch.equal(found.higher, plain.higher)
    assert torch.equal(found.tied, plain.tied)
    assert (found.tied >= 1).all()

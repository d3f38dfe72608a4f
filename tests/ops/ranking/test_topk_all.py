"""topk_all against its definition and against a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.topk_all import topk_all
from tests.ops.reference import topk_all_reference


class Matrix:
    """A scorer that reads its scores from a matrix, and remembers which blocks were asked for."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.asked: list[tuple[int, int]] = []

    def block(self, start: int, stop: int) -> Tensor:
        self.asked.append((start, stop))
        return self.scores[:, start:stop].clone()


def csr(rows: list[list[int]]) -> CSR:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return CSR(offsets, np.array([item for row in rows for item in row], np.int64))


VALUES = st.sampled_from(
    [0.0, -0.0, 1.0, 2.0, -1.0, 1e-40, -3e38, float("nan"), float("inf"), float("-inf")]
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, int, CSR | None, np.ndarray | None, int | None]:
    queries, count = draw(st.integers(1, 3)), draw(st.integers(1, 30))
    cells = draw(st.lists(VALUES, min_size=queries * count, max_size=queries * count))
    ids = st.lists(st.integers(0, count - 1), max_size=6)
    lists = st.lists(ids, min_size=queries, max_size=queries)
    excluded = draw(st.none() | lists.map(csr))
    allowed = draw(
        st.none()
        | st.lists(st.integers(0, count - 1), max_size=20).map(lambda x: np.array(x, np.int64))
    )
    columns = draw(st.none() | st.integers(1, count + 2))
    scores = torch.tensor(cells).view(queries, count)
    return scores, draw(st.integers(1, 8)), excluded, allowed, columns


@given(problems())
@settings(max_examples=400, deadline=None)
def test_matches_the_definition(
    problem: tuple[Tensor, int, CSR | None, np.ndarray | None, int | None],
) -> None:
    scores, k, excluded, allowed, columns = problem
    queries, count = scores.shape
    ids, best = topk_all(Matrix(scores), queries, count, k, excluded, allowed, columns=columns)
    wanted_ids, wanted = topk_all_reference(Matrix(scores), queries, count, k, excluded, allowed)
    assert ids.dtype == torch.int64
    assert best.dtype == torch.float32
    assert ids.tolist() == wanted_ids.tolist()
    assert best.tolist() == wanted.tolist()


@pytest.mark.parametrize("columns", [None, 1000])
@pytest.mark.parametrize("levels", [0, 30])
def test_against_a_stable_sort(columns: int | None, levels: int) -> None:
    torch.manual_seed(1)
    scores = torch.randn(32, 5003)
    if levels:
        scores = (scores * levels / 3).round()
    ids, best = topk_all(Matrix(scores), 32, 5003, 20, columns=columns)
    wanted = torch.sort(scores, dim=1, descending=True, stable=True)
    assert torch.equal(ids, wanted.indices[:, :20])
    assert torch.equal(best, wanted.values[:, :20])


def test_short_of_candidates_is_padded() -> None:
    ids, best = topk_all(Matrix(torch.tensor([[3.0, 1.0, 2.0]])), 1, 3, 5, csr([[0]]))
    assert ids.tolist() == [[2, 1, -1, -1, -1]]
    assert best.tolist() == [[2.0, 1.0, -torch.inf, -torch.inf, -torch.inf]]


def test_only_blocks_with_an_allowed_item_are_scored() -> None:
    scorer = Matrix(torch.arange(20.0)[None])
    ids, _ = topk_all(scorer, 1, 20, 3, allowed=np.array([13, 2]), columns=5)
    assert ids.tolist() == [[13, 2, -1]]
    assert scorer.asked == [(0, 5), (10, 15)]
    ids, best = topk_all(scorer, 1, 20, 2, allowed=np.empty(0, np.int64))
    assert ids.tolist() == [[-1, -1]]
    assert best.tolist() == [[-torch.inf, -torch.inf]]

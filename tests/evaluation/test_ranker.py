"""The ranker: right numbers, whatever the sharing; the model left as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasten.config import EvaluationOptions
from hasten.data.tables import TEST, VALID, Dataset
from hasten.errors import ConfigurationError
from hasten.evaluation.protocols import RankingTask, ranking_task
from hasten.evaluation.query_tiles import TILE_ROWS, make_tiles
from hasten.evaluation.ranker import evaluate
from hasten.models.interface import Model, Sizes
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable
from hasten.scoring import Catalog, FactorScorer, RecommenderQueries
from tests.evaluation.shares import metrics_of_shares

CPU = torch.device("cpu")
METRICS = [
    "ndcg@10", "hr@10", "recall@20", "precision@20", "map@20", "mrr", "mrr@10", "hits@10", "mr"
]  # fmt: skip


class Mean(Model):
    """Scores by the mean of the history's embeddings; dropout shows the mode it runs in."""

    def __init__(self, items: int, width: int = 16) -> None:
        super().__init__(None, Sizes(items=items))
        torch.manual_seed(0)
        self.items = EmbeddingTable(items, width)
        self.dropout = nn.Dropout(0.5)
        self.rows: list[int] = []

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        self.rows.append(len(queries))
        assert torch.is_inference_mode_enabled()
        return FactorScorer(self.vectors(queries), Catalog(self.items))

    def vectors(self, queries: RecommenderQueries) -> Tensor:
        rows = self.items.rows(torch.from_numpy(queries.history.items))
        user = torch.from_numpy(np.repeat(np.arange(len(queries)), queries.history.lengths))
        total = torch.zeros(len(queries), rows.shape[1]).index_add_(0, user, rows)
        mean: Tensor = self.dropout(total / torch.from_numpy(queries.history.lengths)[:, None])
        return mean


@pytest.fixture
def model(dataset: Dataset) -> Mean:
    return Mean(len(dataset.items))


def task_of(dataset: Dataset, part: int = TEST, **options: object) -> RankingTask:
    return ranking_task(dataset, part, EvaluationOptions.model_validate(options), 5)


def rank_by_hand(model: Mean, task: RankingTask, masked: bool) -> list[float]:
    """Realistic ranks of single targets from a dense score matrix, one user at a time."""
    model.eval()
    with torch.no_grad():
        scores = (model.vectors(task.queries) @ model.items.weight.T).numpy()
    ranks = []
    for row, target in enumerate(task.targets.items):
        rivals = np.ones(task.item_count, bool)
        if masked and task.excluded is not None:
            rivals[task.excluded.row(row)] = False
        rivals[target] = False
        others = np.flatnonzero(rivals) if task.candidates is None else task.candidates[row, 1:]
        gap = scores[row, others] - scores[row, target]
        ranks.append(1 + (gap > 0).sum() + (gap == 0).sum() / 2)
    return ranks


@pytest.mark.parametrize(
    "options", [{"mask_history": False}, {"mask_history": True}, {"candidates": "uni100"}]
)
@pytest.mark.parametrize("part", [VALID, TEST])
def test_ranks_are_those_of_a_dense_matrix(
    dataset: Dataset, model: Mean, part: int, options: dict[str, object]
) -> None:
    task = task_of(dataset, part, **options)
    found = evaluate(model, task, ["mr", "hr@10", "mrr"], device=CPU)
    other = "" if task.excluded is None else "/kept" if task.masked else "/masked"
    for name, masked in {"": task.masked, other: not task.masked if other else False}.items():
        ranks = np.array(rank_by_hand(model, task, masked))
        assert found.values[f"mr{name}"] == pytest.approx(ranks.mean(), abs=0.01)
        assert found.values[f"hr@10{name}"] == pytest.approx((ranks <= 10).mean(), abs=0.003)
        assert found.values[f"mrr{name}"] == pytest.approx((1 / ranks).mean(), abs=0.001)
    assert len(found.values) == (6 if other else 3)
    assert found.queries == 700
    assert found.protocol == task.protocol.text()
    assert found.seconds > 0


@pytest.mark.parametrize(
    "options", [{"mask_history": False}, {"mask_history": True}, {"candidates": "uni100"}]
)
def test_one_two_and_three_parts_give_identical_metrics(
    dataset: Dataset, model: Mean, options: dict[str, object]
) -> None:
    task = task_of(dataset, **options)
    whole = evaluate(model, task, METRICS, device=CPU).values
    for parts in (1, 2, 3, 5):
        assert metrics_of_shares(model, task, METRICS, parts, CPU) == whole


def test_every_tile_has_the_same_number_of_rows(dataset: Dataset, model: Mean) -> None:
    evaluate(model, task_of(dataset), ["mrr"], device=CPU)
    assert model.rows == [TILE_ROWS] * 3
    tiles = make_tiles(np.array([5, 1, 5, 2]))
    assert [tile.rows.tolist() for tile in tiles] == [[1, 3, 0, 2]]
    assert tiles[0].padded_rows.tolist() == [1, 3, 0] + [2] * 253
    lengths = np.random.default_rng(0).integers(0, 9, 1000)
    rows = np.concatenate([tile.rows for tile in make_tiles(lengths)])
    assert sorted(rows.tolist()) == list(range(1000))
    assert (np.diff(lengths[rows]) >= 0).all()
    assert make_tiles(np.empty(0, np.int64)) == []


def test_the_mode_of_every_module_is_restored(dataset: Dataset, model: Mean) -> None:
    task = task_of(dataset)
    model.train()
    model.items.eval()
    first = evaluate(model, task, METRICS, device=CPU)
    assert (model.training, model.dropout.training, model.items.training) == (True, True, False)
    model.eval()
    assert evaluate(model, task, METRICS, device=CPU).values == first.values
    assert not model.training
    model.train()
    with pytest.raises(ConfigurationError, match="did you mean"):
        evaluate(model, task, ["ncdg@10"], device=CPU)
    assert model.training


def test_a_stopped_evaluation_has_no_values(dataset: Dataset, model: Mean) -> None:
    model.train()
    asked: list[int] = []

    def stop() -> bool:
        asked.append(len(model.rows))
        return len(asked) == 3

    found = evaluate(
        model,
        task_of(dataset),
        METRICS,
        device=CPU,
        stop=stop,
    )
    assert found.values == {}
    assert asked == [0, 1, 2]
    assert model.training


def test_a_diverged_model_is_the_worst(dataset: Dataset, model: Mean) -> None:
    with torch.no_grad():
        model.items.weight.fill_(torch.nan)
    found = evaluate(model, task_of(dataset), ["mr", "hr@10"], device=CPU).values
    assert found["mr"] == 300.0
    assert found["hr@10"] == found["hr@10/masked"] == 0.0
    masked = evaluate(model, task_of(dataset, candidates="uni100"), ["mr"], device=CPU).values
    assert masked == {"mr": 101.0}

"""Ranking on a simulated CUDA device: the size of tiles, what is moved, and the CPU's metrics."""

from __future__ import annotations

import pytest
import torch

from hasten.build import build_model, load_data, ranking_tasks
from hasten.config_loading.build import build_config
from hasten.evaluation import query_tiles
from hasten.evaluation.query_tiles import TileShape
from hasten.evaluation.ranker import Evaluation, evaluate
from tests.device.measure import FIRST
from tests.device.recorder import Recorder, recording
from tests.device.simulation import simulated

CPU = torch.device("cpu")


def test_tiles_grow_with_the_queries_and_blocks_with_the_memory():
    with simulated("cuda") as device:  # of 16 GiB
        assert TileShape.of(device, 10**6, 10**6) == TileShape(4096, 32768)
        assert TileShape.of(device, 6040, 3416) == TileShape(512, 3416)
        assert TileShape.of(device, 9, 10**7) == TileShape(256, 2**19)
    assert TileShape.of(CPU, 10**6, 10**6) == TileShape(256, 2048)
    assert TileShape.of(CPU, 9, 2**16) == TileShape(256, 2**16)


def evaluated(model: str, device: torch.device) -> tuple[Evaluation, Recorder]:
    case = FIRST[model]
    config = build_config(case.model, None, None, (), case.settings)
    data = load_data(config, case.data)
    torch.manual_seed(0)
    found = build_model(config, data, CPU).to(device)
    if not case.trains:
        found.fit(data)
    task, _ = ranking_tasks(data, config)
    with recording() as recorder:
        return evaluate(found, task, config.evaluation.metrics, device=device), recorder


@pytest.mark.parametrize("columns", [None, 8])
@pytest.mark.parametrize("model", ["pop", "hgt"])
def test_lists_are_moved_once_for_all_tiles(model, columns, monkeypatch):
    """hgt: with ranges of candidates and, in a query, several targets."""
    wanted, _ = evaluated(model, CPU)
    monkeypatch.setattr(query_tiles, "TILE_ROWS", 8)
    monkeypatch.setattr(query_tiles, "MAX_TILE_ROWS", 8)
    if columns is not None:
        monkeypatch.setattr(query_tiles, "_MAX_SCORES", 8 * columns)
        monkeypatch.setattr(query_tiles, "_COLUMN_MULTIPLE", columns)
    with simulated("cuda") as device:
        found, recorder = evaluated(model, device)
    assert found.values == pytest.approx(wanted.values, rel=1e-5)
    assert not recorder.mistakes
    tiles = -(-found.queries // 8)
    assert tiles > 2
    moved = {cause: n for cause, n in recorder.uploads.items() if "ops/transfer.py" in cause}
    assert moved == recorder.uploads
    queries = {"pop": 0, "hgt": tiles}[model]  # a model moves its own queries tile by tile
    graph = {"pop": 0, "hgt": 2}[model]
    assert recorder.uploads.total() == 1 + queries + graph
    if columns is None:
        assert recorder.waits.total() == {"pop": 1, "hgt": 2}[model]

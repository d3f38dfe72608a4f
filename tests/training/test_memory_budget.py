"""A run keeps to its memory budget: what exceeds it is repeated with less, with the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hasten import api
from hasten.evaluation import ranker
from hasten.training.memory import budget as memory_budget
from hasten.training.memory.budget import MemoryBudget
from hasten.training.step import OptimizerStep
from tests.training.test_memory_recovery import assert_same, retreats, train

MB = 1 << 20
STEP = OptimizerStep.accumulate


class Memory:
    """A made-up peak of the process: 100 MiB, and more after steps and tiles of an evaluation."""

    def __init__(self, patch: pytest.MonkeyPatch, *, step: int = 0, fixed: int = 0, tile: int = 0):
        self.peak = 100 * MB
        patch.setattr(memory_budget, "peak_bytes", lambda _: self.peak)
        patch.setattr(memory_budget, "reset_peak", lambda _: setattr(self, "peak", 100 * MB))
        accumulate, rank = OptimizerStep.accumulate, ranker._rank_queries

        def accumulated(stepper: OptimizerStep, batch: Any) -> Any:
            self.use(fixed + step / stepper.micro_batch_count)
            return accumulate(stepper, batch)

        def ranked(model: Any, task: Any, queries: Any, shape: Any) -> Any:
            self.use(tile * len(queries) / 256)
            return rank(model, task, queries, shape)

        patch.setattr(OptimizerStep, "accumulate", accumulated)
        patch.setattr(ranker, "_rank_queries", ranked)

    def use(self, size: float) -> None:
        self.peak = max(self.peak, int((100 + size) * MB))


def held(out: Path, budget: int, patch: pytest.MonkeyPatch) -> str:
    """Train with this budget, which no plan has chosen settings for; the log."""
    plan = {"budget_bytes": budget, "chosen": {}, "reason": "as given"}
    real = api.train_run
    patch.setattr(api, "train_run", lambda *given, **more: real(*given, **more | {"plan": plan}))
    train("sasrec-ce", out)
    return (out / "train.log").read_text()


def test_a_step_that_exceeds_the_budget_is_repeated_with_less(tmp_path, monkeypatch):
    train("sasrec-ce", tmp_path / "plain")
    Memory(monkeypatch, step=800)
    log = held(tmp_path / "run", 320 * MB, monkeypatch)
    # no room for importing activation checkpointing, unless it is imported already
    assert retreats(tmp_path / "run")[-1][1] == 4
    assert "the process takes 900 MiB, and its budget is 320 MiB" in log
    assert_same(tmp_path / "run", tmp_path / "plain")


def test_above_the_budget_where_smaller_settings_do_not_help_the_run_goes_on_with_one_warning(
    tmp_path, monkeypatch
):
    train("sasrec-ce", tmp_path / "plain")
    Memory(monkeypatch, fixed=800)
    log = held(tmp_path / "run", 300 * MB, monkeypatch)
    assert retreats(tmp_path / "run")[-1][1] == 2
    assert log.count("the run continues above its budget") == 1
    assert "900 MiB, and its budget is 300 MiB), with 2 micro-batches; more do not help" in log
    assert_same(tmp_path / "run", tmp_path / "plain")


def test_an_evaluation_that_exceeds_the_budget_ranks_fewer_queries_at_a_time(tmp_path, monkeypatch):
    train("sasrec-ce", tmp_path / "plain")
    Memory(monkeypatch, tile=800)
    held(tmp_path / "run", 320 * MB, monkeypatch)
    assert [each[1:] for each in retreats(tmp_path / "run")] == [(1, False, 64)]  # and no step
    assert_same(tmp_path / "run", tmp_path / "plain")


def test_queries_are_halved_only_where_it_helps(tmp_path, monkeypatch):
    monkeypatch.setattr(Memory, "use", lambda self, size: setattr(self, "peak", 900 * MB))
    Memory(monkeypatch)
    monkeypatch.setattr(OptimizerStep, "accumulate", STEP)
    held(tmp_path / "run", 320 * MB, monkeypatch)
    assert [each[1:] for each in retreats(tmp_path / "run")] == [(1, False, 128)]


def test_a_check_takes_a_thousandth_of_the_time(monkeypatch):
    clock, reads = [0.0], []

    def peak_bytes(_: torch.device) -> int:
        clock[0] += 1e-4
        reads.append(clock[0])
        return MB

    monkeypatch.setattr(memory_budget, "peak_bytes", peak_bytes)
    monkeypatch.setattr(memory_budget, "reset_peak", lambda _: None)
    monkeypatch.setattr(memory_budget.time, "perf_counter", lambda: clock[0])
    budget = MemoryBudget(2 * MB, torch.device("cpu"))
    reads.clear()
    for _ in range(1000):
        budget.check()
        clock[0] += 1e-3  # a step
    assert len(reads) == 10


def test_a_gpu_refuses_what_exceeds_the_budget(monkeypatch):
    set_to: list[float] = []
    found = type("Properties", (), {"total_memory": 8 << 30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, _: set_to.append(share)
    )
    for budget in (2 << 30, 16 << 30):
        limited = MemoryBudget(budget, torch.device("cuda"))
        limited.check()
        limited.stop()
    assert set_to == [0.25, 1.0, 1.0, 1.0]

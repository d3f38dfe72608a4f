"""Memory runs out in one of two processes: both repeat the step, with the same result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.runs.checkpoint import read_checkpoint
from tests.distributed.test_processes import run_workers


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("memory")
    return out, run_workers(2, out, "tests.faults.memory_driver")


def settings(found: dict[str, Any]) -> list[tuple[int, int, bool, int]]:
    """What was done, in order: (step, micro-batches, recompute, queries)."""
    return [tuple(each.values()) for each in found["effective"]["retreats"] or ()]


@pytest.mark.parametrize(
    ("name", "expected", "done"),
    [
        ("forward", "plain", [(2, 1, True, 4096)]),
        ("backward", "plain", [(1, 1, True, 4096)]),
        ("first step of all", "plain", [(0, 1, True, 4096)]),
        ("optimizer", "plain", []),
        ("evaluation", "plain", [(3, 1, False, 64)]),
        ("three times", "plain", [(2, 1, True, 4096), (2, 2, True, 4096), (2, 4, True, 4096)]),
        ("late", "late plain", [(1, 1, True, 4096), (4, 2, True, 4096)]),
        ("late on both", "late plain", [(2, 1, True, 4096)]),
        ("terms", "terms plain", [(0, 1, True, 4096)]),
        ("rows", "rows plain", [(22, 1, True, 4096), (24, 2, True, 4096)]),
    ],
)
def test_both_processes_go_on_with_the_same_settings(both, name, expected, done):
    out, found = both
    assert [settings(each[name]) for each in found] == [done, done]
    checkpoints = [read_checkpoint(out / each / "final").tensors for each in (name, expected)]
    for group, tensors in checkpoints[1].items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(checkpoints[0][group][key], tensor, rtol=1e-5, atol=1e-5)
    assert found[0][name]["valid"] == pytest.approx(found[0][expected]["valid"], abs=1e-5)
    lines = (out / name / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines if '"out_of_memory"' in line]
    assert len(events) == len(done)
    log = (out / name / "train.log").read_text()
    assert log.count("memory ran out") == len(done)


def test_all_end_with_one_message_and_go_on_from_the_last_checkpoint(both):
    out, found = both
    for each in found:
        told = each["always"]
        assert (told["code"], told["exit"]) == ("memory", 1)
        assert "memory ran out on rank 1 (injected: out of memory), with 8 micro" in told["error"]
        for part in ("hasten plan", "hasten resume", "--batch-size"):
            assert part in told["error"]
        assert told["epochs"] == 2
    final = [
        read_checkpoint(out / each / "final").tensors["weights"] for each in ("always", "plain")
    ]
    for key, tensor in final[1].items():
        torch.testing.assert_close(final[0][key], tensor, rtol=1e-5, atol=1e-5)

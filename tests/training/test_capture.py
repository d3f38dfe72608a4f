"""The option training.capture; tests/device compares the weights of captured steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hasten.errors import ConfigurationError
from hasten.ops.graph import spmm_rows
from hasten.training.capture import step as capture
from hasten.training.capture.step import capture_steps
from tests.contract.cases import CASES
from tests.device.measure import build
from tests.device.replay import SimulatedGraphs
from tests.device.simulation import simulated

CPU = torch.device("cpu")


def case(label: str) -> Any:
    return next(case for case in CASES if case.label == label)


def told(label: str, device: torch.device, **settings: object) -> list[dict[str, Any]]:
    """The report on a model of which no step was taken yet."""
    config, _, _, steppers = build(case(label), device, **settings)
    return capture_steps(steppers, config.training)()


def test_a_cpu_captures_nothing_and_says_why():
    (report,) = told("sasrec-ce", CPU)
    assert not report["in_effect"]
    assert "CUDA" in report["note"]
    with pytest.raises(ConfigurationError, match=r"training\.capture=always: .* not cpu"):
        told("sasrec-ce", CPU, **{"training.capture": "always"})


@pytest.mark.parametrize(
    ("label", "settings", "reason"),
    [
        ("sasrec-ce", {"training.accumulate": 2}, "accumulate"),
        ("sasrec-ce", {"training.recompute": True}, "recompute"),
        ("sasrec-ce", {"training.compile": "default"}, "compile"),
        ("sasrec-ce", {"training.capture": "never"}, "never"),
        ("sasrec-ce", {"training.deterministic": True}, "deterministic"),
        ("hgt-edges", {}, "part of the graph"),
    ],
)
def test_what_is_not_captured_says_why(label, settings, reason):
    with simulated("cuda") as device:
        report = told(label, device, **settings)[-1]
        assert not report["in_effect"]
        assert reason in report["note"]


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputed_steps_have_the_shapes_of_captured_ones(recompute):
    """So that activation checkpointing changes no number."""
    with simulated("cuda") as device:
        given = {"training.recompute": recompute}
        config, _, _, (stepper,) = build(case("sasrec-ce"), device, **given)
        capture_steps([stepper], config.training)
        assert stepper.phase.fixed is not None
        assert (stepper.replay is None) == recompute


@pytest.mark.parametrize("slow", [False, True])
def test_auto_keeps_a_graph_only_if_it_is_faster(slow, monkeypatch):
    """A last smaller batch is taken as usual."""
    replays = []

    class Graphs(SimulatedGraphs):
        def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
            _, result = super().record(function)

            def replay() -> None:
                replays.append(time.sleep(0.2 if slow else 0.0))

            return replay, result

    monkeypatch.setattr(capture, "CudaGraphs", Graphs)
    with simulated("cuda") as device:
        config, _, _, (stepper,) = build(case("bprmf"), device, **{"training.batch_size": 40})
        report = capture_steps([stepper], config.training)
        assert report()[0]["note"] == "too few steps"
        steps, taken = stepper.phase.steps(), 0
        for epoch in range(3):
            for index in range(steps):
                stepper(stepper.plan(0, epoch, index), 1e-3)
                taken += index < steps - 1
    (found,) = report()
    usual = capture.WARM_UP + capture.TIMED
    assert found["in_effect"] == (not slow)
    assert len(replays) == (1 + capture.TIMED if slow else taken - usual)
    if slow:
        assert found["note"] == "no faster"
    assert found["eager_ms"] > 0


def test_a_large_graph_is_read_by_rows_and_not_captured(monkeypatch):
    monkeypatch.setattr(spmm_rows, "MAX_VISITED_ENTRIES", 0)
    with simulated("cuda") as device:
        (report,) = told("lightgcn", device)
    assert not report["in_effect"]
    assert "only the entries of its rows" in report["note"]

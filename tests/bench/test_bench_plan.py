"""The table of what plans predict: attempts, limits, records, pages; and the check on a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu_plan, half_memory, plan_accuracy
from hasten.registry import model_entries

MIB = 2**20


@pytest.fixture
def errors(monkeypatch):
    """The errors of the peak in the attempts to come; the sizes that were measured."""
    coming: list[float] = []

    def attempt(arguments, threads):
        error = coming.pop(0) if coming else 0.0
        trains = arguments[0] not in plan_accuracy.FITTED
        return {
            "predicted_peak": (1 + error) * 100 * MIB, "measured_peak": 100 * MIB,
            "predicted_seconds": 1.1 * trains, "measured_seconds": 1.0 * trains,
        }  # fmt: skip

    monkeypatch.setattr(plan_accuracy, "attempt", attempt)
    return coming


def test_every_model_has_its_cases():
    assert set(plan_accuracy.MODELS) == {entry.name for entry in model_entries()}


def test_a_case_that_falls_out_is_repeated_and_the_median_counts(errors, tmp_path, capsys):
    errors += [0.3, 0.05, 0.04]
    arguments = ["--models", "conve", "pop", "--sizes", "1", "2"]
    assert plan_accuracy.main(arguments, tmp_path) == 0
    (page,) = tmp_path.glob("*-plan-accuracy.md")
    assert "| width 50, batch_size 128 | 105 | 100 | +5.0% | 1.1 | 1 | +10.0% | 3 | yes |" in (
        page.read_text()
    )
    assert "| pop | built-in sample | recipe defaults | 100 | 100 | +0.0% |  |  |  | 1 | yes |" in (
        page.read_text()
    )


def test_a_page_has_the_newest_record_of_each_case(errors, tmp_path):
    assert plan_accuracy.accuracy_table(".", tmp_path) == "No result yet."
    errors += [0.2, 0.2, 0.2]
    assert plan_accuracy.main(["--models", "conve", "sasrec", "--sizes", "1"], tmp_path) == 1
    text = plan_accuracy.accuracy_table(".", tmp_path)
    assert "1 of 2 cases are within" in text
    assert text.count("**no**") == 1
    assert plan_accuracy.main(["--models", "conve", "sasrec", "--sizes", "1"], tmp_path) == 0
    assert "**no**" not in plan_accuracy.accuracy_table(".", tmp_path)


def test_the_page_of_half_memory_has_the_newest_record_of_each_model(tmp_path, monkeypatch):
    ran: dict[str, Any] = {
        "predicted": 45 * MIB, "chosen": {"accumulate": 4}, "retreats": 0, "difference": 1e-7,
        "slower": 1.5,
    }  # fmt: skip
    coming = [{"refused": "too few"}, {**ran, "held": 51 * MIB}, {**ran, "held": 50 * MIB}]

    def measure(model, *_):
        known = {"model": model, "settings": {"model.width": 8}, "free": 100 * MIB}
        return {**known, "budget": 50 * MIB, **coming.pop(0)}

    monkeypatch.setattr(half_memory, "measure", measure)
    for passed in (False, False, True):
        assert (half_memory.main(["--models", "kgat"], tmp_path) == 0) is passed
        text = half_memory.memory_table(".", tmp_path)
        assert text.startswith(f"{int(passed)} of {len(half_memory.CASES)} models pass.")
    row = "| kgat | width 8 | 100 | 50 | 45 | 50 | accumulate 4 | 0 | 1.0e-07 | 1.50 | yes |"
    assert row in text.splitlines()


def test_absent_data_are_skipped_with_the_reason(errors, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_accuracy, "plain_file", lambda name: tmp_path / name)
    assert plan_accuracy.main(["--models", "hgt", "--sizes", "1", "real"], tmp_path) == 0
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["skipped"] == [
        {"model": "hgt", "size": "real", "reason": "redda-k is absent"}
    ]


@pytest.mark.parametrize(("error", "passed"), [(0.14, True), (-0.16, False)])
def test_a_device_check_asks_for_the_peaks_of_plans(error, passed, monkeypatch):
    plan = {
        "predicted": {"peak_memory_bytes": (1 + error) * MIB},
        "measured": {"peak_memory_bytes": MIB},
    }
    monkeypatch.setattr(gpu_plan, "run_hasten", lambda *_: {"plan": plan})
    found = gpu_plan.plan_peaks(torch.device("cpu"), Path())
    assert found["passed"] is passed
    assert len(found["models"]) == len(gpu_plan.SETTINGS)

"""A writer that dies at any moment leaves a whole checkpoint behind, the old one or the new."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked


def drive(scenario: str, folder: Path, *counts: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.faults.crash_driver", scenario, str(folder / "place")]
    output, messages = folder / "output", folder / "messages"
    with output.open("w") as stdout, messages.open("w") as stderr:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = forked.Popen(
            [*command, *map(str, counts)], env=environment, stdout=stdout, stderr=stderr
        )
    try:
        assert process.wait(timeout=600) == 0, messages.read_text()
    finally:
        process.kill()
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.mark.parametrize(
    ("scenario", "old", "new"), [("overwrite", 1, 2), ("save_and_prune", 2, 3)]
)
def test_death_at_every_stage(tmp_path, scenario, old, new):
    found = drive(scenario, tmp_path)
    assert found["stages"] >= 15
    # first the old one, from some stage on the new one, and never neither
    assert found["seen"] == sorted(found["seen"])
    assert set(found["seen"]) == {old, new}


def test_a_full_disk_at_every_stage(tmp_path):
    found = drive("full_disk", tmp_path)
    assert found["stages"] >= 15
    assert set(found["seen"]) == {1, 2}


def test_files_that_may_not_grow(tmp_path):
    outcomes = drive("file_limit", tmp_path)["outcomes"]
    assert outcomes == [9] * 8 + [0]


def test_sigkill_at_random_moments(tmp_path):
    found = drive("killed", tmp_path, 30)
    assert found["saves"] > 5


@pytest.mark.slow
def test_sigkill_at_many_random_moments(tmp_path):
    # how many saves the killed ones get done depends on what else the machine does
    assert drive("killed", tmp_path, 500)["saves"] > 100


def test_reading_what_is_being_replaced(tmp_path):
    assert drive("concurrent", tmp_path, 40)["different"] == 40

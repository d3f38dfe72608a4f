"""``make mps-check`` on a simulated device: it compares, and finds what differs."""

from __future__ import annotations

import json
import math

import pytest

from hasten.training.step import OptimizerStep
from tests.device import mps_check
from tests.device.simulation import simulated


def results(folder):
    (path,) = folder.glob("*-mps-check.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("factor", [2.0, math.nan])
def test_equal_devices_agree_and_a_different_step_is_found(factor, tmp_path, monkeypatch):
    arguments = ["--only", "bprmf", "--steps", "2", "--out"]
    with simulated("mps"):
        assert mps_check.main([*arguments, str(tmp_path / "equal")]) == 0
    found = results(tmp_path / "equal")
    assert not found["bad"]
    assert all(each["mps"]["losses"] == each["cpu"]["losses"] for each in found["cases"])

    step = OptimizerStep.__call__

    def different(self, batch, lr, *flags):
        values = step(self, batch, lr, *flags)
        return {k: v * (factor if self.device.type == "mps" else 1) for k, v in values.items()}

    monkeypatch.setattr(OptimizerStep, "__call__", different)
    with simulated("mps"):
        assert mps_check.main([*arguments, str(tmp_path / "different")]) == 1
    assert results(tmp_path / "different")["bad"]


def test_without_a_device_it_says_so(capsys):
    assert mps_check.main([]) == 2
    assert "no MPS device" in capsys.readouterr().err

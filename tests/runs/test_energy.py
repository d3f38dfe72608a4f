"""Energy is counted over all packages and overflows, and unknown where it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.runs.energy import EnergyMeter

LIMIT = 1000


def counter(root: Path, folder: str, name: str, microjoules: int) -> Path:
    path = root / folder
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text(f"{LIMIT}\n")
    (path / "energy_uj").write_text(f"{microjoules}\n")
    return path / "energy_uj"


def test_packages_add_up_over_an_overflow(tmp_path):
    first = counter(tmp_path, "intel-rapl:0", "package-0", 900)
    second = counter(tmp_path, "intel-rapl:1", "package-1", 100)
    part = counter(tmp_path, "intel-rapl:0:0", "core", 0)
    platform = counter(tmp_path, "intel-rapl:2", "psys", 0)
    with EnergyMeter(tmp_path) as meter:
        first.write_text("50")  # 900 to the limit of 1000, to 0, to 50
        second.write_text("130")
        part.write_text("700")
        platform.write_text("700")
        assert meter.report()["joules"] == pytest.approx((151 + 30) / 1e6)
        second.write_text("150")
        found = meter.report()
    assert found["joules"] == pytest.approx((151 + 50) / 1e6)
    assert found["packages"] == 2
    assert found["seconds"] > 0


def test_there_is_no_report_without_readable_counters(tmp_path):
    with EnergyMeter(tmp_path / "none") as meter:
        assert meter.report() is None
    counter(tmp_path, "intel-rapl:0", "package-0", 1).unlink()
    with EnergyMeter(tmp_path) as meter:
        assert meter.report() is None

import argparse
import json
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

from bench import column_sharding, scaling
from tests import forked


def test_rounds_alternate_and_ratios_are_within_rounds(tmp_path, monkeypatch, capsys):
    asked = []
    rates = iter([100.0, 190.0, 99.0, 195.0, 200.0, 50.0, 100.0, 52.0])

    def run_once(side, options):
        asked.append(side)
        return next(rates)

    monkeypatch.setattr(scaling, "run_once", run_once)
    assert scaling.main(["--devices", "1", "2", "--rounds", "2", "--provisional"], tmp_path) == 0
    assert asked == [1, 2, "launched", "apart", "apart", "launched", 2, 1]
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert result["against_one"]["2"]["low"] == pytest.approx(1.9)
    assert result["against_one"]["2"]["high"] == pytest.approx(100 / 52)
    assert result["against_one"]["apart"]["high"] == pytest.approx(200 / 52)
    assert "| 1 under torchrun |" in path.with_suffix(".md").read_text()
    assert "not quiet" in capsys.readouterr().out


class Finished:
    """A training that ended at once: 100 examples a second in its middle epoch."""

    started: ClassVar[list[list[str]]] = []
    returncode = 0

    def __init__(self, command, **_):
        self.started.append(command)
        out = Path(command[command.index("--out") + 1])
        out.mkdir()
        rows = [{"kind": "train", "examples_per_second": rate} for rate in (1, 100, 1)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def communicate(self):
        return "", None

    def kill(self):
        pass


@pytest.mark.parametrize(
    ("per_device", "size"),
    [
        (False, ["--batch-size", "256"]),
        (True, ["--set", "training.batch_size_per_device=512"]),
    ],
)
def test_trainings_apart_add_up_and_share_the_batch(monkeypatch, tmp_path, per_device, size):
    monkeypatch.setattr(Finished, "started", [])
    monkeypatch.setattr(subprocess, "Popen", Finished)
    monkeypatch.setattr(scaling, "plain_file", lambda name: tmp_path / name)
    options = argparse.Namespace(
        devices=[1, 2], data="ml-1m", device="cpu", threads=1, batch_size=512,
        per_device=per_device, epochs=3, set=[],
    )  # fmt: skip
    assert scaling.run_once(2, options) == 100
    assert scaling.run_once("apart", options) == 200
    assert len(Finished.started) == 3
    for command in Finished.started[1:]:
        assert "--devices" not in command
        assert any(command[i : i + 2] == size for i in range(len(command)))


def test_one_process_is_what_others_are_compared_with(tmp_path):
    with pytest.raises(SystemExit):
        scaling.main(["--devices", "2", "4"], tmp_path)
    with pytest.raises(SystemExit):
        scaling.main(["--epochs", "2"], tmp_path)


def test_a_layer_in_columns_gives_what_a_repeated_one_gives(shared_data, tmp_path, monkeypatch):
    if not (shared_data / "cf_amazon-book_noKG").is_dir():
        pytest.skip("the pairs of Amazon-book are not at hand")
    monkeypatch.setattr(column_sharding, "subprocess", forked)
    column_sharding.main(["--scale", "0.002", "--rounds", "1", "--provisional"], tmp_path)
    (file,) = tmp_path.glob("*-column-sharding-2.json")
    found = json.loads(file.read_text())
    assert found["settings"]["differ"] < 1e-6
    assert found["settings"]["edges"] > 1000
    assert "times as fast" in file.with_suffix(".md").read_text()

"""Training on events with features from the command line, in one process and in two."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hasten.cli.main import main
from hasten.distributed import launch
from tests import forked
from tests.models.multimodal.modal_data import write_features

ITEMS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The layout of MMRec: users with seven items side by side on a ring, one each held out."""
    folder = tmp_path_factory.mktemp("features") / "rings"
    write_features(folder, ITEMS)
    generator = np.random.default_rng(2)
    lines = ["userID\titemID\tx_label"]
    for user in range(40):
        held = (generator.integers(ITEMS) + generator.permutation(7)) % ITEMS
        lines += [f"{user}\t{item}\t{max(0, n - 4)}" for n, item in enumerate(held)]
    (folder / "rings.inter").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("model", ["mmgcn", "dragon"])
def test_two_processes_train_what_one_does(model, folder, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(launch, "subprocess", forked)
    shown = []
    for devices in (1, 2):
        arguments = ["train", model, str(folder), "--out", str(tmp_path / str(devices))]
        arguments += ["--epochs", "3", "--batch-size", "50", "--lr", "1e-2", "--metrics", "recall"]
        arguments += ["--topk", "5", "--devices", str(devices), "--device", "cpu"]
        assert main([*arguments, "--quiet", "--json"]) == 0, capfd.readouterr().err
        shown.append(json.loads(capfd.readouterr().out.splitlines()[-1]))
    one, two = shown
    assert (one["effective"]["devices"], two["effective"]["devices"]) == (1, 2)
    losses = []
    for devices in (1, 2):
        lines = (tmp_path / str(devices) / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        losses.append([record["loss"] for record in records if record["kind"] == "train"])
    assert len(losses[0]) == 3
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert two["valid"] == pytest.approx(one["valid"], abs=0.03)
    assert two["test"] == pytest.approx(one["test"], abs=0.03)
    assert (tmp_path / "2" / "train-rank1.log").exists()

"""The flow of a run: what is refused before there is a folder, and beginning again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hasten import api, loaded_run, run
from hasten.config_loading.build import load_config
from hasten.errors import ConfigurationError, DataError, RunFolderError
from hasten.testing import fingerprint, training_log
from hasten.training.cpu_fallback import falls_back_to_cpu
from hasten.training.step import OptimizerStep
from tests.contract.cases import sequences

SMALL = {"model.width": 8, "model.max_length": 12, "device": "cpu", "threads": 1}


def train(out: Path, data: object = None, **settings: object) -> api.Result:
    merged = {**SMALL, "training.epochs": 2, "training.batch_size": 8}
    merged |= {name.replace("__", "."): value for name, value in settings.items()}
    return api.train("sasrec", data or sequences(), settings=merged, out=str(out), quiet=True)


def test_a_protocol_that_cannot_be_followed_leaves_no_folder(tmp_path):
    for settings in (
        {"data__split": "ratio", "evaluation__candidates": "uni100"},
        {"evaluation__mask_history": True, "evaluation__candidates": "uni100"},
    ):
        with pytest.raises(ConfigurationError, match="uni100"):
            train(tmp_path / "run", **settings)
        assert not (tmp_path / "run").exists()


def test_a_run_whose_device_fails_goes_on_with_the_cpu(tmp_path, monkeypatch, capsys):
    """From its last checkpoint: what comes out is what the CPU alone gives."""
    train(tmp_path / "cpu")
    real, step, taken = run.falls_back_to_cpu, OptimizerStep.__call__, []

    def failing(self, *arguments, **more):
        taken.append(self)
        if len(taken) == 10:  # in the second epoch
            raise RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)\nmore")
        return step(self, *arguments, **more)

    monkeypatch.setattr(OptimizerStep, "__call__", failing)
    # the CPU stands for an Apple GPU, until the run is on "cpu" by name
    monkeypatch.setattr(run, "falls_back_to_cpu", lambda e, _, chosen, n: real(e, "mps", chosen, n))
    with pytest.raises(RuntimeError, match="out of memory"):
        train(tmp_path / "named", device="cpu")
    assert "goes on" not in capsys.readouterr().err
    taken.clear()
    train(tmp_path / "left", device="auto")
    said = capsys.readouterr().err
    assert "failed (MPS backend out of memory (MPS allocated: 9.00 GB))" in said
    assert f"{tmp_path / 'left'} goes on with the CPU from its last checkpoint" in said
    assert "PYTORCH_ENABLE_MPS_FALLBACK=1" in said
    assert fingerprint(tmp_path / "left") == fingerprint(tmp_path / "cpu")
    assert load_config(tmp_path / "left" / "config.yaml").device == "cpu"


@pytest.mark.parametrize(
    ("error", "device", "chosen", "processes", "goes"),
    [
        (RuntimeError("MPS backend out of memory"), "mps", "auto", 1, True),
        (NotImplementedError("'aten::x' is not for this device"), "mps", "auto", 1, True),
        (RuntimeError("MPS backend out of memory"), "mps", "mps", 1, False),
        (RuntimeError("MPS backend out of memory"), "mps", "auto", 2, False),
        (RuntimeError("CUDA out of memory"), "cuda", "auto", 1, False),
        (RuntimeError("shapes cannot be multiplied"), "mps", "auto", 1, False),
        (ValueError("mps"), "mps", "auto", 1, False),
    ],
)
def test_only_a_device_that_was_not_named_is_left(error, device, chosen, processes, goes):
    assert falls_back_to_cpu(error, device, chosen, processes) == goes


def test_a_user_who_has_everything_leaves_no_negatives(tmp_path):
    events = {"user_id": np.zeros(8, int), "item_id": np.array([0, 1, 2, 0, 1, 2, 0, 1])}
    with pytest.raises(DataError, match="all 3 items in training, so there are no negatives"):
        train(tmp_path / "run", events, model__loss="bce")
    assert not (tmp_path / "run").exists()
    train(tmp_path / "run", events, model__loss="ce")


@pytest.mark.parametrize("content", ["{}", "[" * 100_000])
def test_damaged_records_of_the_data_are_refused(content, tmp_path):
    train(tmp_path)
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"data\.json: damaged: "):
        run.resume(tmp_path, quiet=True)


def test_a_run_that_died_before_its_first_checkpoint_begins_again(tmp_path):
    """Its records are not doubled, and it starts from the same weights as the first time."""
    train(tmp_path / "before", seed=5)
    whole = train(tmp_path / "whole", init_from=str(tmp_path / "before")).path
    died = tmp_path / "died"
    shutil.copytree(whole, died)
    for name in ("checkpoints", "best", "final"):
        shutil.rmtree(died / name)
    run.resume(died, quiet=True)
    assert fingerprint(died) == fingerprint(whole)
    assert training_log(died) == training_log(whole)


def test_the_protocol_of_an_evaluation_is_that_of_the_test_part(tmp_path):
    rows = {"train": [(1, 1), (1, 2), (2, 2), (3, 3)], "valid": [(1, 3)], "test": [(2, 3), (9, 1)]}
    for name, pairs in rows.items():
        lines = ["user_id,item_id", *(f"{user},{item}" for user, item in pairs)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    result = api.train("pop", str(tmp_path), out=str(tmp_path / "run"), quiet=True)
    assert "1 user without a history left out" in result.protocol
    assert loaded_run.evaluate(tmp_path / "run")["protocol"] == result.protocol
    valid = loaded_run.evaluate(tmp_path / "run", part="valid")["protocol"]
    assert "without a history" not in valid

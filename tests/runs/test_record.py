"""record.json: written however a run ends, complete, without paths, and true to the files."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from hasten import api, run
from hasten.errors import HastenError, Interrupted, NonFiniteError, RunFolderError
from hasten.models.sequential.sasrec import SASRec
from hasten.runs import energy
from hasten.runs.record import read_record
from hasten.runs.run_folder import RunFolder
from hasten.training.trainer import Trainer
from tests.contract.cases import sequences
from tests.runs.test_energy import counter

SMALL = {"model.width": 8, "model.max_length": 12, "training.batch_size": 8, "threads": 1}


def train(out: Path, data: object = None, **settings: object) -> api.Result:
    merged = {**SMALL, "training.epochs": 2, "device": "cpu"}
    merged |= {name.replace("__", "."): value for name, value in settings.items()}
    return api.train("sasrec", data or sequences(), settings=merged, out=str(out), quiet=True)


def record_of(path: Path) -> dict:
    return json.loads((path / "record.json").read_text())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    pyarrow.csv.write_csv(pa.table(sequences()), folder / "events.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(energy, "_POWERCAP", folder)
        counter(folder, "intel-rapl:0", "package-0", 5)
        train(folder / "run", folder / "events.csv")
    return folder / "run"


def test_the_record_has_everything(finished):
    record, metrics = record_of(finished), json.loads((finished / "metrics.json").read_text())
    assert record["ended"] == "epochs"
    assert record["epochs"] == 2
    assert (
        record["data"]["fingerprint"]
        == json.loads((finished / "data.json").read_text())["fingerprint"]
    )
    (file,) = record["data"]["files"]
    assert (file["name"], file["sha256"]) == ("events.csv", sha256(finished.parent / "events.csv"))
    for name in ("protocol", "seconds", "examples_per_second", "peak_memory_bytes", "effective"):
        assert record[name] == metrics[name]
    assert record["metrics"] == {
        "epoch": metrics["best_epoch"], "valid": metrics["valid"], "test": metrics["test"]
    }  # fmt: skip
    assert record["seed"] == record["configuration"]["seed"] == 0
    assert record["configuration"]["model.width"] == 8
    assert record["configuration"]["data.path"] == "events.csv"
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["python"] == platform.python_version()
    assert record["versions"]["numpy"] == np.__version__
    assert record["machine"]["cores"] == os.cpu_count()
    assert {"processor", "instructions", "memory_bytes"} <= record["machine"].keys()
    assert record["energy"]["packages"] == 1
    assert record["energy"]["joules"] == 0
    for name in ("best", "final"):
        assert record["weights"][name] == sha256(finished / name / "weights.safetensors")
    for name, expected in record["files"].items():
        assert sha256(finished / name) == expected
    assert {"config.yaml", "metrics.jsonl", "metrics.json", "data/items.parquet"} <= {
        *record["files"]
    }


def test_the_record_names_no_path_and_no_host(finished):
    text = (finished / "record.json").read_text()
    assert str(finished.parent) not in text
    assert str(Path.cwd()) not in text
    host = socket.gethostname()
    assert f'"{host}"' not in text
    assert "/home" not in text


def test_energy_is_absent_where_the_system_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path / "none")
    train(tmp_path / "run", training__epochs=1)
    assert "energy" not in record_of(tmp_path / "run")


def test_an_interrupted_run_says_so_and_a_resumed_one_replaces_the_record(tmp_path, monkeypatch):
    finish = Trainer.finish_epoch

    def stop_in_the_second(trainer):
        if trainer.state.position.epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        finish(trainer)

    monkeypatch.setattr(Trainer, "finish_epoch", stop_in_the_second)
    with pytest.raises(Interrupted):
        train(tmp_path / "run")
    record = record_of(tmp_path / "run")
    assert record["ended"] == "interrupted by SIGTERM"
    assert record["epochs"] == 1
    assert record["metrics"]["epoch"] == 1
    assert record["metrics"]["test"] == {}
    assert record["weights"].keys() == {"best"}
    assert "metrics.json" not in record["files"]
    assert read_record(RunFolder.open(tmp_path / "run", lock=False))[1] == []
    monkeypatch.setattr(Trainer, "finish_epoch", finish)
    run.resume(tmp_path / "run", quiet=True)
    record = record_of(tmp_path / "run")
    assert (record["ended"], record["epochs"]) == ("epochs", 2)


def test_a_limit_of_time_and_a_failure_are_named(tmp_path, monkeypatch):
    train(tmp_path / "time", training__max_time=1e-9)
    assert record_of(tmp_path / "time")["ended"] == "max_time"
    real = SASRec.next_item_loss
    monkeypatch.setattr(SASRec, "next_item_loss", lambda *given: real(*given) * float("nan"))
    with pytest.raises(NonFiniteError):
        train(tmp_path / "failed", training__bad_steps=2)
    assert record_of(tmp_path / "failed")["ended"] == "failed: non_finite"


def test_a_record_that_cannot_be_written_does_not_hide_the_error(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise HastenError("the disk is full")

    monkeypatch.setattr("hasten.training_run.write_record", fail)
    monkeypatch.setattr(SASRec, "next_item_loss", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run")


def test_a_run_that_goes_on_has_no_record(tmp_path, monkeypatch):
    train(tmp_path / "run")
    seen = []
    finish = Trainer.finish_epoch

    def look(trainer):
        seen.append((tmp_path / "run" / "record.json").exists())
        finish(trainer)

    monkeypatch.setattr(Trainer, "finish_epoch", look)
    run.resume(tmp_path / "run", changes={"training.epochs": 3}, quiet=True)
    assert seen == [False]
    assert record_of(tmp_path / "run")["epochs"] == 3


def test_a_record_of_another_version_is_refused(tmp_path):
    train(tmp_path / "run", training__epochs=1)
    file = tmp_path / "run" / "record.json"
    for text in ('{"format": "hasten record", "version": 2}', '{"format": "other"}'):
        file.write_text(text)
        with pytest.raises(RunFolderError, match="not a record of version 1"):
            read_record(RunFolder.open(tmp_path / "run", lock=False))
    file.write_text("{")
    with pytest.raises(RunFolderError, match=r"record\.json: damaged"):
        read_record(RunFolder.open(tmp_path / "run", lock=False))
    file.unlink()
    with pytest.raises(RunFolderError, match="hasten resume"):
        read_record(RunFolder.open(tmp_path / "run", lock=False))

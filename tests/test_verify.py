"""``hasten verify``: the same run is the same bit by bit; what was changed or differs is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from hasten import api, verify
from hasten.cli.main import main
from hasten.config_loading.build import load_config
from hasten.errors import Interrupted, RunFolderError
from hasten.models.sequential.sasrec import SASRec
from hasten.run import resume
from hasten.runs import record as records
from hasten.runs.manifest import hash_of, own_hash
from hasten.training.trainer import Trainer
from tests.contract.cases import graph, sequences

SMALL = {"training.batch_size": 8, "device": "cpu", "threads": 1}
SASREC = {"model.width": 8, "model.max_length": 12}


def train(out: Path, model: str = "sasrec", **settings: object) -> api.Result:
    merged = {**SMALL, **(SASREC if model == "sasrec" else {}), "training.epochs": 3}
    merged |= {name.replace("__", "."): value for name, value in settings.items()}
    data = graph() if model == "distmult" else sequences()
    return api.train(model, data, settings=merged, out=str(out), quiet=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("finished") / "run", training__schedule="linear").path


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def rewrite_record(run: Path, **changes: object) -> None:
    """Change keys (``versions__torch``) of a record as if it had been written so."""
    record = json.loads((run / "record.json").read_text())
    del record["sha256"]
    for name, value in changes.items():
        section, _, key = name.partition("__")
        (record[section] if key else record)[key or section] = value
    (run / "record.json").write_text(json.dumps({**record, "sha256": own_hash(record)}))


def test_a_run_is_repeated_bit_by_bit(finished, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert main(["verify", str(finished), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"]
    assert found["expected"] == "bits"
    assert found["epochs"] == 3
    assert found["changed"] == found["environment"] == []
    assert found["losses"]["equal"]
    assert found["losses"]["compared"] == 3 * 2  # loss and lr
    assert found["metrics"]["equal"]
    assert found["weights"] == {"epoch 3": True, "best": True}
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_the_first_epochs_follow_the_schedule_of_the_whole_run(finished, capsys):
    """The checkpoint of the second epoch is kept, that of the first is not."""
    found = verify.verify(finished, epochs=2)
    assert found["same"]
    assert found["weights"].pop("epoch 2")
    assert all(found["weights"].values())
    assert main(["verify", str(finished), "--epochs", "1"]) == 0
    said = capsys.readouterr().err
    assert "the same: 1 epoch repeated, expected to agree bit by bit" in said
    assert "losses       2 figures, identical" in said


@pytest.mark.parametrize("count", ["0", "4", "x"])
def test_epochs_that_the_run_does_not_have_are_refused(finished, count, capsys):
    assert main(["verify", str(finished), "--epochs", count]) == 2
    assert "epochs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("config.yaml", "config.yaml was changed"),
        ("metrics.jsonl", "metrics.jsonl was changed"),
        ("metrics.json", "metrics.json was changed"),
        ("data/interactions.parquet", "data/interactions.parquet was changed"),
        ("data.json", "data.json was changed"),
        ("record.json", "record.json was edited"),
        ("best/weights.safetensors", "best/weights.safetensors: damaged"),
    ],
)
def test_a_changed_file_is_named_and_nothing_repeated(copied, file, told, capsys, monkeypatch):
    monkeypatch.setattr(verify, "resume", lambda *_, **__: pytest.fail("repeated"))
    content = bytearray((copied / file).read_bytes())
    at = content.index(b"0") if file.endswith(("json", "jsonl", "yaml")) else len(content) // 2
    content[at] ^= 1  # one digit, or one bit
    (copied / file).write_bytes(content)
    assert main(["verify", str(copied)]) == 1
    said = capsys.readouterr().err
    assert told in said
    assert "nothing was repeated" in said


def test_missing_files_and_exchanged_weights_are_named(copied):
    (copied / "data" / "items.parquet").unlink()
    shutil.rmtree(copied / "best")
    shutil.copytree(copied / "checkpoints" / "epoch-0002", copied / "best")
    rewrite_record(copied, weights__best="0" * 64)
    changed = verify.verify(copied)["changed"]
    assert changed == ["data/items.parquet is missing", "best/weights.safetensors was replaced"]


def test_a_damaged_checkpoint_of_the_last_repeated_epoch_is_named(copied, capsys):
    path = copied / "checkpoints" / "epoch-0002" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["verify", str(copied), "--epochs", "2"]) == 1
    assert "epoch-0002/weights.safetensors: damaged" in capsys.readouterr().err
    assert verify.verify(copied, epochs=1)["same"]


def test_another_result_is_not_the_same(finished, monkeypatch, capsys):
    """Training that has changed: losses, metrics and weights differ."""
    real = SASRec.next_item_loss
    monkeypatch.setattr(SASRec, "next_item_loss", lambda *given: real(*given) * 1.0001)
    assert main(["verify", str(finished)]) == 1
    said = capsys.readouterr().err
    assert "not the same: 3 epochs repeated, expected to agree bit by bit" in said
    assert "weights      best: different" in said
    assert "of 6 figures differ" in said
    found = verify.verify(finished, epochs=1)
    assert not found["losses"]["equal"]
    assert found["losses"]["digits"] >= 3
    assert found["losses"]["first"]["name"] == "loss"


def test_in_another_environment_digits_count(copied, monkeypatch, capsys):
    """The difference is named; a small one is accepted there, a large one is not."""
    rewrite_record(copied, versions__torch="1.0", machine__processor="other")
    real = SASRec.next_item_loss
    monkeypatch.setattr(SASRec, "next_item_loss", lambda *given: real(*given) * 1.0001)
    found = verify.verify(copied, epochs=1)
    assert [each["name"] for each in found["environment"]] == [
        "versions.torch",
        "machine.processor",
    ]
    assert found["expected"] == "digits"
    assert found["same"]
    monkeypatch.setattr(SASRec, "next_item_loss", lambda *given: real(*given) * 1.1)
    assert main(["verify", str(copied), "--epochs", "1"]) == 1
    said = capsys.readouterr().err
    assert "differs      versions.torch: 1.0, here" in said
    assert "in 2 digits (the environment differs)" in said


def test_what_was_in_effect_is_repeated(finished):
    """Threads, the outcome of compile=auto, and the micro-batches of all processes."""
    config = load_config(finished / "config.yaml")
    options = config.training.model_copy(update={"compile": "auto", "accumulate": 2})
    config = config.model_copy(update={"training": options, "device": "cuda:7", "devices": 3})
    report = {"in_effect": False}
    effective = {"threads": 5, "devices": 3, "accumulate": 2, "device": "cpu", "compile": [report]}
    again = verify._repeatable(config, effective)
    assert (again.threads, again.devices, again.device) == (5, 1, "cpu")
    assert (again.training.accumulate, again.training.compile) == (6, "off")
    again = verify._repeatable(config, effective | {"compile": [{"in_effect": True}]})
    assert again.training.compile == "default"
    if not torch.cuda.is_available():
        assert verify._repeatable(config, effective | {"device": "cuda:0"}).device == "auto"


@pytest.mark.slow
def test_several_processes_are_repeated_in_one(tmp_path, capfd):
    """With dropout, too: the micro-batches are the same, only sums are rounded differently."""
    data = tmp_path / "events.csv"
    pyarrow.csv.write_csv(pa.table(sequences()), data)
    flags = ["--epochs", "1", "--batch-size", "16", "--threads", "1", "--device", "cpu"]
    flags += ["--devices", "2", "--set", "model.width=8", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["train", "sasrec", str(data), *flags]) == 0
    found = verify.verify(tmp_path / "run")
    assert found["environment"] == [{"name": "effective.devices", "recorded": 2, "here": 1}]
    assert found["same"]
    assert found["losses"]["equal"] or found["losses"]["digits"] >= 4


@pytest.mark.parametrize("model", ["pop", "distmult"])
def test_other_models_are_repeated_too(model, tmp_path):
    if model == "pop":
        settings = {"device": "cpu", "threads": 1}
        api.train("pop", sequences(), settings=settings, out=str(tmp_path / "run"), quiet=True)
    else:
        train(tmp_path / "run", model, model__width=8, training__epochs=2)
    found = verify.verify(tmp_path / "run")
    assert found["same"]
    assert found["expected"] == "bits"
    assert found["metrics"]["compared"] > 0


def test_an_interrupted_run_is_verified_up_to_its_last_epoch(tmp_path, monkeypatch):
    finish = Trainer.finish_epoch

    def stop_in_the_second(trainer):
        if trainer.state.position.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
        finish(trainer)

    monkeypatch.setattr(Trainer, "finish_epoch", stop_in_the_second)
    with pytest.raises(Interrupted):
        train(tmp_path / "run")
    monkeypatch.setattr(Trainer, "finish_epoch", finish)
    found = verify.verify(tmp_path / "run")
    assert found["same"]
    assert (found["epochs"], found["weights"]["best"]) == (1, True)


def test_a_run_that_was_extended_is_repeated_in_stages(copied, capsys):
    """The learning rates of the first epochs are those of the shorter run."""
    resume(copied, changes={"training.epochs": 5, "training.max_time": 99.0}, quiet=True)
    assert main(["verify", str(copied)]) == 0
    said = capsys.readouterr().err
    assert "resumed      after epoch 3 with training.epochs 5 (before: 3)\n" in said
    assert "the same: 5 epochs repeated, expected to agree bit by bit" in said
    found = verify.verify(copied, epochs=2)
    assert (found["same"], found["expected"], found["resumed"]) == (True, "bits", [])


def test_a_change_within_an_epoch_is_named_with_what_can_be_compared(tmp_path, capsys):
    run = train(
        tmp_path / "run",
        training__schedule="linear",
        checkpoint__every_steps=1,
        checkpoint__keep=99,
    ).path
    middle = {"checkpoint": "epoch-0001-step-000001", "quiet": True}
    resume(run, changes={"training.epochs": 4}, **middle)
    found = verify.verify(run)
    assert found["expected"] == "digits"
    assert main(["verify", str(run), "--epochs", "1"]) == 0
    assert "expected to agree bit by bit" in capsys.readouterr().err
    assert found["resumed"] == [
        "within epoch 2 with training.epochs 4 (before: 3); the epochs from there on cannot be "
        "repeated exactly (only those before can: --epochs 1)"
    ]


def test_a_run_resumed_without_a_record_of_its_options_is_repeated_as_before(copied, capsys):
    resume(copied, changes={"training.epochs": 4}, quiet=True)
    file = copied / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line.pop("changed", None)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = json.loads((copied / "record.json").read_text())["files"]
    rewrite_record(copied, files=files | {"metrics.jsonl": hash_of(file)})
    assert main(["verify", str(copied)]) == 1
    said = capsys.readouterr().err
    assert "resumed      by a version of hasten that did not record changed options" in said
    assert "not the same: 4 epochs" in said


def test_a_run_without_a_complete_epoch_or_a_record_is_refused(tmp_path):
    train(tmp_path / "run", training__max_time=1e-9)
    with pytest.raises(RunFolderError, match="within its first epoch"):
        verify.verify(tmp_path / "run")
    (tmp_path / "run" / records.RECORD).unlink()
    with pytest.raises(RunFolderError, match=r"record\.json: missing: the run has not ended"):
        verify.verify(tmp_path / "run")


def test_an_interrupted_verification_says_that_nothing_was_compared(finished, monkeypatch):
    finish = Trainer.finish_epoch

    def stop(trainer):
        os.kill(os.getpid(), signal.SIGINT)
        finish(trainer)

    monkeypatch.setattr(Trainer, "finish_epoch", stop)
    with pytest.raises(Interrupted, match="nothing was compared"):
        verify.verify(finished)


def test_digits_that_agree():
    assert verify.common_digits(1.0, 1.0001) == 4
    assert verify.common_digits(1.0, 2.0) == 0
    assert verify.common_digits(-1e-9, 1e-9) == 0
    assert verify.common_digits(None, 1.0) == 0

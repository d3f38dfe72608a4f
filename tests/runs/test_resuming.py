"""What a run resumes from, and what is refused: the configuration, the data, the best epoch."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from hasten import api, run
from hasten.cli.main import main
from hasten.errors import CheckpointError, ConfigurationError, RunFolderError
from hasten.runs.checkpoint import read_checkpoint, write_checkpoint
from hasten.testing import fingerprint, training_log
from hasten.training.trainer import Trainer
from tests.contract.cases import sequences

SMALL = {
    "model.width": 8,
    "model.max_length": 12,
    "training.batch_size": 16,
    "device": "cpu",
    "threads": 1,
    "training.schedule": "constant",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six epochs that keeps all checkpoints."""
    out = tmp_path_factory.mktemp("resuming") / "run"
    settings = {**SMALL, "training.epochs": 6, "checkpoint.keep": 9, "training.lr": 0.01}
    api.train("sasrec", sequences(), settings=settings, out=str(out), quiet=True)
    return out


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def best_of(folder: Path, last: int) -> int:
    """The first epoch with the highest validation metric, up to ``last``."""
    valid = [r for r in training_log(folder) if r["kind"] == "valid" and r["epoch"] <= last]
    return int(max(valid, key=lambda r: r["ndcg@10"])["epoch"])


def with_best_epoch(folder: Path, epoch: int) -> None:
    """Let the run have selected this epoch when it ended."""
    found = read_checkpoint(folder / "checkpoints" / f"epoch-{epoch:04d}")
    state = {**found.state, "selection": {**found.state["selection"], "best_epoch": epoch}}
    write_checkpoint(folder / "best", found.tensors, state)


def test_a_later_best_is_dropped_with_the_epochs_after_the_named_one(copy):
    with_best_epoch(copy, 5)
    expected = best_of(copy, 4)
    summary = run.resume(copy, checkpoint="epoch-0002", changes={"training.epochs": 4}, quiet=True)
    assert (summary.epochs, summary.best_epoch) == (4, expected)
    assert read_checkpoint(copy / "best").state["position"]["epoch"] == expected
    assert fingerprint(copy, "best") == fingerprint(copy, f"checkpoints/epoch-{expected:04d}")
    assert read_checkpoint(copy / "final").state["position"]["epoch"] == 4


def test_the_metrics_of_deleted_weights_are_deleted_too(copy, monkeypatch):
    assert json.loads((copy / "metrics.json").read_text())["epochs"] > 2

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.resume(copy, checkpoint="epoch-0002", quiet=True)
    assert not (copy / "metrics.json").exists()


def test_the_best_epoch_before_the_named_one_comes_back(copy):
    """No epoch follows, so the selection of the named checkpoint is the answer."""
    with_best_epoch(copy, 6)
    expected = best_of(copy, 4)
    summary = run.resume(copy, checkpoint="epoch-0004", changes={"training.epochs": 4}, quiet=True)
    assert summary.best_epoch == expected
    assert fingerprint(copy, "best") == fingerprint(copy, f"checkpoints/epoch-{expected:04d}")


def test_lost_weights_of_the_best_epoch_are_told(copy, capsys):
    name = "epoch-0004"
    found = read_checkpoint(copy / "checkpoints" / name)
    selection = {**found.state["selection"], "best": 2.0, "best_epoch": 2}
    write_checkpoint(
        copy / "checkpoints" / name, found.tensors, {**found.state, "selection": selection}
    )
    shutil.rmtree(copy / "checkpoints" / "epoch-0002")
    with_best_epoch(copy, 6)
    summary = run.resume(copy, checkpoint=name, changes={"training.epochs": 5}, quiet=True)
    assert "the weights of the best epoch so far, 2, are no longer kept" in capsys.readouterr().err
    assert summary.best_epoch == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lr", "0.02"),
        ("seed", "7"),
        ("batch_size", "32"),
        ("optimizer", "adamw"),
        ("split", "ratio"),
        ("precision", "bf16"),
        ("metrics", "[hr@10]"),
        ("width", "16"),
    ],
)
def test_an_edited_configuration_is_refused_by_its_key(copy, key, value):
    file = copy / "config.yaml"
    before = {path.name for path in (copy / "checkpoints").iterdir()}
    text = re.sub(rf"(?m)^( *{key}:).*$", rf"\1 {value}", file.read_text(), count=1)
    assert text != file.read_text()
    file.write_text(text)
    for checkpoint in (None, "epoch-0002"):
        with pytest.raises(
            ConfigurationError, match=rf"config\.yaml: changed.*{key} is .*, and was"
        ):
            run.resume(copy, checkpoint=checkpoint, changes={"training.epochs": 7}, quiet=True)
    assert {path.name for path in (copy / "checkpoints").iterdir()} == before


def test_options_that_may_change_may_be_edited(copy):
    file = copy / "config.yaml"
    file.write_text(re.sub(r"(?m)^( *epochs:).*$", r"\1 7", file.read_text(), count=1))
    assert run.resume(copy, quiet=True).epochs == 7


def test_a_checkpoint_without_a_configuration_resumes(copy):
    """Those of version 0.1.0 have none."""
    newest = copy / "checkpoints" / "epoch-0006"
    found = read_checkpoint(newest)
    state = {name: value for name, value in found.state.items() if name != "config"}
    write_checkpoint(newest, found.tensors, state)
    assert run.resume(copy, changes={"training.epochs": 7}, quiet=True).epochs == 7


def test_best_alone_is_enough_to_resume_from(copy):
    shutil.rmtree(copy / "checkpoints")
    epoch = read_checkpoint(copy / "best").state["position"]["epoch"]
    changes = {"training.epochs": epoch + 1}
    assert run.resume(copy, checkpoint="best", changes=changes, quiet=True).epochs == epoch + 1


@pytest.mark.parametrize("state", [{}, {"position": {}}, {"position": None}, "without selection"])
def test_a_state_that_is_none_of_a_run_is_damaged(copy, state):
    newest = copy / "checkpoints" / "epoch-0006"
    found = read_checkpoint(newest)
    if isinstance(state, str):
        state = {name: value for name, value in found.state.items() if name != "selection"}
    write_checkpoint(newest, found.tensors, state)
    with pytest.raises(CheckpointError, match=r"epoch-0006/state\.json: damaged: no (pos|sel)"):
        run.resume(copy, quiet=True)


def test_a_state_that_lacks_a_part_is_damaged(copy):
    newest = copy / "checkpoints" / "epoch-0006"
    found = read_checkpoint(newest)
    for part in ("totals", "steps", "compiled"):
        state = {name: value for name, value in found.state.items() if name != part}
        write_checkpoint(newest, found.tensors, state)
        with pytest.raises(CheckpointError, match=f"epoch-0006: damaged.*{part}"):
            run.resume(copy, quiet=True)


def test_the_message_says_which_checkpoints_are_kept_and_why(tmp_path):
    settings = {**SMALL, "training.epochs": 4}
    api.train("sasrec", sequences(), settings=settings, out=str(tmp_path / "run"), quiet=True)
    with pytest.raises(RunFolderError) as refused:
        run.resume(tmp_path / "run", checkpoint="epoch-0002", quiet=True)
    assert "has no checkpoint 'epoch-0002'; it has best, final, epoch-0003, epoch-0004" in str(
        refused.value
    )
    assert "checkpoint.keep=2: the 2 newest are kept" in str(refused.value)


def test_resume_auto_refuses_data_that_have_changed(tmp_path, capsys):
    data, out = tmp_path / "events.csv", tmp_path / "run"
    table = pa.table(sequences())
    pyarrow.csv.write_csv(table, data)
    command = ["train", "sasrec", str(data), "--out", str(out), "--resume", "auto", "--json"]
    for name, value in SMALL.items():
        command += ["--set", f"{name}={value}"]
    assert main([*command, "--epochs", "1"]) == 0
    assert main([*command, "--epochs", "2"]) == 0
    before = fingerprint(out)
    pyarrow.csv.write_csv(table.slice(0, table.num_rows - 1), data)
    capsys.readouterr()
    assert main([*command, "--epochs", "3"]) == 2
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert message.startswith(f"{data}: changed since the run {out} stored a copy")
    assert f"hasten resume {out}" in message
    assert fingerprint(out) == before
    for change in (lambda: data.write_text("no\n"), data.unlink):  # the run folder is enough
        change()
        assert main([*command, "--epochs", "3"]) == 0
        assert f"not compared with the copy that the run continues on: {data}: " in (
            capsys.readouterr().err
        )

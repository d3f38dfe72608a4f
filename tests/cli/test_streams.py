"""Standard output and error that are closed, full, or cannot show every character."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten import api
from hasten.cli.main import main
from tests import forked
from tests.contract.cases import sequences

TRAIN = ["--epochs", "2", "--device", "cpu", "--threads", "1", "--set", "model.width=8"]

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose items are named in characters that ASCII lacks."""
    events = sequences()
    events["item_id"] = [f"\N{ROCKET}{item}" for item in events["item_id"]]
    out = tmp_path_factory.mktemp("streams") / "run"
    settings = {"model.width": 8, "model.max_length": 12, "device": "cpu", "threads": 1}
    api.train("sasrec", events, settings=settings, epochs=1, out=str(out), quiet=True)
    return out


@pytest.mark.parametrize("closed", ["from the start", "by its reader"])
def test_training_goes_on_when_nobody_reads_stderr(closed, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "hasten", "train", "sasrec", "--out", str(out), *TRAIN]
    if closed == "from the start":
        done = subprocess.run(["bash", "-c", '"$@" 2>&-', "train", *command], check=False)
        assert done.returncode == 0
    else:
        reader, writer = os.pipe()
        os.close(reader)
        with Path(os.devnull).open("w") as stdout:
            process = forked.Popen(command, stdout=stdout, stderr=writer)
        os.close(writer)
        assert process.wait() == 0
    assert (out / "final" / "manifest.json").is_file()
    assert "epoch 2" in (out / "train.log").read_text()


@full
@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_cannot_be_written_is_one_message(run, more, buffered, monkeypatch, capsys):
    raw = os.open("/dev/full", os.O_WRONLY)
    stdout = io.TextIOWrapper(os.fdopen(raw, "wb", 8192 if buffered else 0), write_through=True)
    monkeypatch.setattr("sys.stdout", stdout)
    assert main(["recommend", str(run), "--users", "all", "--topk", "3", *more]) == 1
    monkeypatch.undo()
    stdout.close()
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert "cannot be written: No space left on device" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_terminal_without_the_characters_gets_them_escaped(run, more, monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["recommend", str(run), "--users", "all", "--topk", "3", *more]) == 0
    text = shown.getvalue().decode("ascii")
    if more:
        assert json.loads(text)["recommendations"][0]["item_id"].startswith("\N{ROCKET}")
    else:
        assert "\\U0001f680" in text

"""kill -9 at random moments: every resume works and the end is that of an unbroken run."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from hasten.testing import fingerprint, training_log
from tests import forked
from tests.contract.cases import sequences


def _command(data: Path, out: Path) -> list[str]:
    sets = [
        "model.width=16",
        "model.max_length=12",
        "checkpoint.every_steps=3",
        "checkpoint.keep=3",
    ]
    return [
        *(sys.executable, "-m", "hasten", "train", "sasrec", str(data), "--out", str(out)),
        *("--resume", "auto", "--epochs", "30", "--batch-size", "16", "--device", "cpu"),
        *("--threads", "1", "--quiet"),
        *(part for each in sets for part in ("--set", each)),
    ]


def _start(data: Path, out: Path) -> tuple[forked.Popen, Path]:
    """The process of a run, and the file of what it says."""
    messages = out.with_suffix(".stderr")
    with messages.open("w") as file:
        return forked.Popen(_command(data, out), stderr=file), messages


def _survive(kills: int, tmp_path: Path) -> None:
    data = tmp_path / "events.csv"
    pyarrow.csv.write_csv(pa.table(sequences(users=120)), data)
    begin = time.monotonic()
    process, messages = _start(data, tmp_path / "whole")
    assert process.wait() == 0, messages.read_text()
    duration = time.monotonic() - begin
    generator = random.Random(1)
    done = 0
    for attempt in range(10 * kills):
        process, messages = _start(data, tmp_path / "killed")
        wait = duration * generator.uniform(0.1, 0.9)
        code = process.wait(timeout=wait if done < kills else None)
        if code is None:
            process.kill()
            process.wait()
            done += 1
            continue
        assert code == 0, f"attempt {attempt}: {messages.read_text()}"
        if done >= kills:
            break
        (tmp_path / "killed").rename(tmp_path / f"finished-{attempt}")
    assert done == kills
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "whole")
    assert training_log(tmp_path / "killed") == training_log(tmp_path / "whole")
    for finished in tmp_path.glob("finished-*"):
        assert fingerprint(finished) == fingerprint(tmp_path / "whole")


def test_killed_twice(tmp_path):
    _survive(2, tmp_path)


@pytest.mark.slow
def test_killed_thirty_times(tmp_path):
    _survive(30, tmp_path)

"""The records of a run: one line each, the same after a resume, safe to show."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hasten.config import ModelOptions, RunConfig
from hasten.console import escape_controls
from hasten.errors import HastenError
from hasten.runs.journal import Journal
from hasten.runs.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", "m", "d") as made:
        made.write_config(RunConfig(model=ModelOptions(name="m")))
        yield made


def lines(folder: RunFolder) -> list[dict[str, object]]:
    text = (folder.path / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def work(folder: RunFolder, steps: range, resume: int | None, board: bool = False) -> None:
    with Journal(folder, quiet=True, tensorboard=board, resume_step=resume) as journal:
        if resume is not None:
            journal.record("event", resume // 3, resume, {"event": "resume"})
        for step in steps:
            journal.record("train", step // 3, step, {"loss": 1 / step})
            if step % 3 == 0:
                journal.record("valid", step // 3, step, {"ndcg@10": step / 100})


def test_a_record_is_a_line_of_strict_json(folder):
    begin = time.time()
    with Journal(folder, quiet=True, tensorboard=False) as journal:
        journal.record("valid", 2, 7, {"loss": math.nan, "ndcg@10": 0.25, "note": "a\nb", "n": 3})
        found = lines(folder)  # at once, not when closed
    assert len(found) == 1
    assert begin - 1 < found[0].pop("time") < time.time() + 1
    assert found[0] == {
        "kind": "valid",
        "epoch": 2,
        "step": 7,
        "loss": None,
        "ndcg@10": 0.25,
        "note": "a\nb",
        "n": 3,
    }


def without_times_and_events(folder: RunFolder) -> list[dict[str, object]]:
    return [
        {key: value for key, value in line.items() if key != "time"}
        for line in lines(folder)
        if line["kind"] != "event"
    ]


@pytest.mark.parametrize("torn", [b"", b'{"kind": "tra', b"\x00\x00\x00"])
def test_a_resumed_run_has_the_records_of_an_unbroken_one(tmp_path, folder, torn):
    work(folder, range(1, 13), None)
    unbroken = without_times_and_events(folder)

    with RunFolder.create(tmp_path / "resumed", "m", "d") as resumed:
        work(resumed, range(1, 9), None)
        path = resumed.path / "metrics.jsonl"
        path.write_bytes(path.read_bytes() + torn)
        work(resumed, range(7, 11), 6)
        work(resumed, range(4, 13), 3)
        assert without_times_and_events(resumed) == unbroken
        # the resumption from step 6 is undone with the steps that followed it
        assert [line["step"] for line in lines(resumed) if line["kind"] == "event"] == [3]


def test_damaged_lines_are_dropped_and_told(folder, capsys):
    work(folder, range(1, 4), None)
    path = folder.path / "metrics.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n[1]\n" + path.read_bytes())
    with Journal(folder, quiet=True, tensorboard=False, resume_step=3):
        pass
    assert "warning: metrics.jsonl: 2 damaged lines were dropped" in capsys.readouterr().err
    assert [line["step"] for line in lines(folder)] == [1, 2, 3, 3]


def scalars(folder: RunFolder, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder.path))
    events.Reload()
    return [(event.step, round(event.value, 6)) for event in events.Scalars(tag)]


def test_tensorboard_shows_numbers_once_after_a_resume(folder, monkeypatch):
    work(folder, range(1, 9), None, board=True)
    # TensorBoard orders its files by name, which begins with the second
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 1)
    work(folder, range(7, 13), 6, board=True)
    assert scalars(folder, "train/loss") == [(n, round(1 / n, 6)) for n in range(1, 13)]
    assert scalars(folder, "valid/ndcg@10") == [(n, n / 100) for n in (3, 6, 9, 12)]


def test_tensorboard_gets_no_text_and_nothing_infinite(folder):
    with Journal(folder, quiet=True) as journal:
        journal.record("train", 0, 1, {"loss": math.inf, "why": "x", "lr": 0.5})
    events = EventAccumulator(str(folder.path))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/lr"]


def test_tensorboard_gets_the_hyperparameters(folder):
    settings = {"model.width": 16, "training.lr": 0.1, "training.patience": None, "seed": 0}
    with Journal(folder, quiet=True) as journal:
        journal.record_settings(settings, ["valid/mrr"], {})
    events = EventAccumulator(str(folder.path))
    events.Reload()
    found = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    for name in settings:
        assert name.encode() in found
    experiment = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    assert b"valid/mrr" in experiment


def test_tensorboard_is_optional(folder, monkeypatch):
    monkeypatch.setattr("hasten.runs.journal.find_spec", lambda _: None)
    with Journal(folder, quiet=True) as journal:
        journal.record_settings({"seed": 0}, [], {})
        journal.record("train", 1, 1, {"loss": 0.5})
    assert not list(folder.path.glob("events.out.tfevents.*"))


def test_logs_have_times_and_people_see_the_lines(folder, capsys):
    with Journal(folder, quiet=False, tensorboard=False) as journal:
        journal.log_train("epoch 1  loss 0.5")
        journal.log_valid("ndcg@10 0.03  best so far")
        journal.warn("slow")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["epoch 1  loss 0.5", "warning: slow"]
    train = (folder.path / "train.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in train] == ["epoch 1  loss 0.5", "warning: slow"]
    time.strptime(train[0][:19], "%Y-%m-%d %H:%M:%S")
    assert (folder.path / "val.log").read_text().endswith(" ndcg@10 0.03  best so far\n")


def test_quiet_shows_warnings_alone(folder, capsys):
    with Journal(folder, quiet=True, tensorboard=False) as journal:
        journal.log_train("epoch 1")
        journal.log_valid("ndcg")
        journal.warn("slow")
    assert capsys.readouterr() == ("", "warning: slow\n")
    assert "epoch 1" in (folder.path / "train.log").read_text()


def test_nothing_can_be_smuggled_into_the_logs(folder, capsys):
    evil = "item\n2026-01-01 00:00:00 epoch 9\r\x1b[2Jx\x00\x85\u2028\u202e\ud800é 日本"
    with Journal(folder, quiet=False, tensorboard=False) as journal:
        journal.log_train(evil)
        journal.warn(evil)
        journal.record("event", 0, 0, {"event": evil})
    safe = r"item\n2026-01-01 00:00:00 epoch 9\r\x1b[2Jx\x00\x85\u2028\u202e\ud800é 日本"
    assert capsys.readouterr().err == f"{safe}\nwarning: {safe}\n"
    log = (folder.path / "train.log").read_text(encoding="utf-8")
    assert len(log.splitlines()) == 2
    assert safe in log
    assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == 1
    assert lines(folder)[0]["event"] == evil
    assert escape_controls("plain ü") == "plain ü"


def test_own_keys_cannot_be_overwritten(folder):
    with (
        Journal(folder, quiet=True, tensorboard=False) as journal,
        pytest.raises(AssertionError, match="reserved"),
    ):
        journal.record("train", 0, 0, {"step": 3})


def test_a_file_that_cannot_be_written_is_named(folder):
    (folder.path / "val.log").mkdir()
    with pytest.raises(HastenError, match=r"val\.log: the records cannot be written"):
        Journal(folder, quiet=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_told(folder):
    journal = Journal(folder, quiet=True, tensorboard=False)
    full = [Path("/dev/full").open("w", encoding="utf-8") for _ in range(2)]  # noqa: SIM115
    journal._metrics, journal._train = full
    for file in full:
        journal._files.callback(file.close)
    with pytest.raises(HastenError, match="cannot be written: No space left"):
        journal.record("train", 0, 1, {"loss": 1.0})
    with pytest.raises(HastenError, match="cannot be written: No space left"):
        journal.log_train("epoch 1")
    with pytest.raises(HastenError, match="cannot be written: No space left"):
        journal.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_screen_that_is_gone_does_not_end_the_run(folder, monkeypatch):
    with Path("/dev/full").open("w") as screen, Journal(folder, quiet=False) as journal:
        monkeypatch.setattr("sys.stderr", screen)
        for epoch in (1, 2):
            journal.log_train(f"epoch {epoch}")
    said = [line.split(" ", 2)[2] for line in (folder.path / "train.log").read_text().splitlines()]
    assert said == ["epoch 1", "stderr is closed; the log continues in this file", "epoch 2"]


def test_a_record_is_quick(folder):
    with Journal(folder, quiet=True) as journal:
        values = {"loss": 0.5, "lr": 1e-3, "seconds": 1.0}
        begin = time.process_time()  # which other programs do not disturb
        for step in range(300):
            journal.record("train", 0, step, values)
        each = (time.process_time() - begin) / 300
    assert each < 2e-3, f"{1e6 * each:.0f} microseconds a record"

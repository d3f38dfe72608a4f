"""Why a run ended, and whether it was still improving."""

from __future__ import annotations

import json

import pytest

from hasten.runs.ending import ending
from hasten.runs.summary import Summary


def summary(run, stopped_by="epochs", epochs=3, best=3, valid=("ndcg@10",), rate=9.0) -> Summary:
    values = dict.fromkeys(valid, 0.1)
    return Summary(
        run, "sasrec", "events", epochs, values, {}, "", {}, rate, 0, {}, stopped_by, best
    )


def write(run, metric, *values):
    lines = [json.dumps({"kind": "valid", "step": 1, metric: value}) + "\n" for value in values]
    text = '{"kind": "train", "step": 1}\n{"kind": "valid", "st' + "\n" + "".join(lines)
    (run / "metrics.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("stopped_by", "says"),
    [
        ("epochs", "finished after 3 epochs, best epoch 3"),
        ("max_time", "time limit (training.max_time) after 3 epochs, best epoch 3"),
        ("callback", "a callback asked for it after 3 epochs, best epoch 3"),
        ("no improvement for 2 evaluations", "early stopping: no improvement for 2 evaluations"),
    ],
)
def test_the_reason(tmp_path, stopped_by, says):
    assert ending(summary(tmp_path, stopped_by))[0].startswith(says)


def test_whether_it_was_still_improving(tmp_path):
    write(tmp_path, "ndcg@10", 0.1, 0.3, 0.31)
    improving = "still improving when it stopped: resume with  hasten resume"
    assert ending(summary(tmp_path))[1] == f"{improving} {tmp_path} --epochs 6"
    assert ending(summary(tmp_path, "max_time"))[1] == f"{improving} {tmp_path}"
    assert len(ending(summary(tmp_path, best=2))) == 1
    assert len(ending(summary(tmp_path, "no improvement for 2 evaluations"))) == 1
    write(tmp_path, "ndcg@10", 0.1, 0.3, 0.36)
    far = ending(summary(tmp_path))[1]
    assert far.startswith(f"far from trained (ndcg@10 0.3000 to 0.3600), {improving}")
    write(tmp_path, "mr", 40.0, 20.0, 19.0)
    assert ending(summary(tmp_path, valid=["mr"]))[1].startswith(improving)
    write(tmp_path, "mr", 40.0, 20.0, 9.0)
    assert ending(summary(tmp_path, valid=["mr"]))[1].startswith("far from trained (mr 20.0000")


def test_what_cannot_be_told(tmp_path):
    write(tmp_path, "ndcg@10", 0.1)
    assert "too short to tell" in ending(summary(tmp_path, epochs=1, best=1))[1]
    assert len(ending(summary(tmp_path, valid=()))) == 1  # nothing to validate on
    assert ending(summary(tmp_path, rate=0.0)) == ["finished"]  # without gradient steps

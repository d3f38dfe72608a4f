"""What a resumed run changed, also after records were dropped and after a crash between writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hasten.config import ModelOptions, RunConfig, TrainingOptions
from hasten.runs.checkpoint import Checkpoint
from hasten.runs.option_changes import changed_options


def config(epochs: int) -> RunConfig:
    return RunConfig(model=ModelOptions(name="m"), training=TrainingOptions(epochs=epochs))


def change(step: int, before: int, after: int) -> dict[str, object]:
    changed = {"training.epochs": {"before": before, "after": after}}
    return {"kind": "event", "epoch": 0, "step": step, "event": "resume", "changed": changed}


@pytest.mark.parametrize(
    ("lines", "step", "of_epoch", "saved", "now", "before"),
    [
        ([], 30, 0, 3, 5, 3),
        ([], 30, 0, 3, 3, None),
        ([change(30, 3, 5)], 30, 0, 5, 5, None),
        # died after the record and before config.yaml
        ([change(30, 3, 5)], 30, 0, 3, 3, 5),
        # from an earlier checkpoint: the change is dropped, and made there
        ([change(30, 3, 5)], 20, 0, 5, 5, 3),
        ([change(10, 3, 5), change(30, 5, 7)], 20, 0, 7, 7, 5),
        # within an epoch, none of the same step is kept
        ([change(15, 3, 5)], 15, 5, 5, 5, 3),
        ([{"kind": "event", "epoch": 1, "step": 10, "event": "resume"}], 30, 0, 3, 5, 3),
    ],
)
def test_what_changed(tmp_path, lines, step, of_epoch, saved, now, before):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    position = {"epoch": 1, "step": step, "step_of_epoch": of_epoch}
    checkpoint = Checkpoint(Path("x"), {}, {"position": position})
    expected = {} if before is None else {"training.epochs": {"before": before, "after": now}}
    assert changed_options(tmp_path, checkpoint, config(saved), config(now)) == expected

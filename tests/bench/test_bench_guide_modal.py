"""The table of the MMGCN guide: what is run, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import baby_features, guide_modal

COMPILED = {"in_effect": False, "eager_ms": 80.0, "compiled_ms": 90.0, "note": "slower"}


@pytest.fixture
def commands(monkeypatch):
    """What is asked of ``hasten train``; its answers are made up."""
    asked = []

    def output_of(command, threads):
        if "--how" in command:
            return json.dumps({"epoch_seconds": 88.0})
        asked.append(command)
        out = Path(command[command.index("--out") + 1])
        out.mkdir()
        seconds = 8.0 if "2048" in command else 4.0
        train = [{"kind": "train", "seconds": s} for s in (99.0, seconds, seconds)]
        valid = [{"kind": "valid", "recall@20": 0.1 * n, "ndcg@20": 0.2} for n in (1, 2)]
        (out / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*train, *valid])))
        found = {
            "seconds": {"evaluate": 6.0 if "5,10,20,50" in command else 3.0},
            "peak_memory_bytes": 300 * 2**20,
            "effective": {"compile": [COMPILED] if "auto" in command else "off"},
        }
        return "a line\n" + json.dumps(found)

    monkeypatch.setattr(guide_modal, "output_of", output_of)
    monkeypatch.setattr(guide_modal, "folder_of", lambda name, scratch: scratch)
    return asked


def test_every_switch_alone_and_together(commands, tmp_path):
    assert guide_modal.main(["--data", "tiktok", "--rounds", "2"], tmp_path) == 0
    assert len(commands) == 12
    changed = [set(command) - set(commands[0]) for command in commands[:6]]
    assert [{"4096", "auto", "3", "20", "recall,ndcg"} & each for each in changed] == [
        set(), {"4096"}, {"auto"}, set(), {"20", "recall,ndcg"},
        {"4096", "auto", "20", "recall,ndcg"},
    ]  # fmt: skip
    every = [command[command.index("--eval-every") + 1] for command in commands[:6]]
    assert every == ["1", "1", "1", "3", "1", "3"]
    (page,) = tmp_path.glob("*-guide-mmgcn-tiktok-cpu.md")
    text = page.read_text()
    assert "Plain PyTorch, steps alone: 88 s an epoch." in text
    assert "| baseline | 10 | 2 | 1.00 | 300 | 0.2000 | 0.2000 |" in text
    assert "| compile (not kept: 80 ms a step without, 90 with) | 10 | 2 | 1.00 |" in text
    assert "| all of them | 5 | 1 | 2.00 | 300 |" in text


def test_epochs_that_end_in_an_evaluation(tmp_path):
    with pytest.raises(SystemExit):
        guide_modal.main(["--epochs", "4"], tmp_path)


def test_some_rows_with_the_baseline(commands, tmp_path):
    options = ["--data", "tiktok", "--plain-steps", "0", "--rows"]
    with pytest.raises(SystemExit):
        guide_modal.main([*options, "batch 4096"], tmp_path)
    assert guide_modal.main([*options, "all of them", "baseline"], tmp_path) == 0
    assert len(commands) == 2
    (page,) = tmp_path.glob("*.md")
    assert page.read_text().count("\n| ") == 4  # titles, the line below, two rows
    assert "Plain PyTorch" not in page.read_text()


def test_baby_is_written_as_it_is_read(monkeypatch, tmp_path):
    monkeypatch.setitem(baby_features.ITEMS, "baby", 5)
    monkeypatch.setitem(baby_features.WIDTHS, "baby", (3, 2))
    part = np.array([0, 1, 2], np.int8)
    events = (np.array([0, 1, 1]), np.array([4, 2, 0]), part)
    monkeypatch.setattr(guide_modal, "events_of", lambda name: events)
    folder = guide_modal.folder_of("baby", tmp_path / "data")
    lines = (folder / "baby.inter").read_text().splitlines()
    assert lines == ["userID\titemID\tx_label", "0\t4\t0", "1\t2\t1", "1\t0\t2"]
    assert np.load(folder / "image_feat.npy").shape == (5, 3)
    assert np.load(folder / "text_feat.npy").dtype == np.float32

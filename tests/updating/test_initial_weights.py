"""``init_from`` with other data: rows are matched by label, or refused in one message."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import hasten
from hasten.data.store import load_stored
from hasten.errors import CheckpointError
from hasten.runs.checkpoint import read_checkpoint

SMALL = {"model.width": 8, "model.max_length": 5, "threads": 1}


def events(first: int, prefix: str = "") -> dict[str, list[object]]:
    """20 users with five of twelve items, from the first number on."""
    rows = [(u, first + (u + step) % 12, step) for u in range(20) for step in range(5)]
    return {
        "user": [f"u{u}" for u, _, _ in rows],
        "item": [f"{prefix}{i:02}" for _, i, _ in rows],
        "time": [t for _, _, t in rows],
    }


def train(out: Path, data: dict[str, list[object]], **flags: object) -> hasten.Result:
    return hasten.train("sasrec", data, settings=SMALL, out=out, quiet=True, **flags)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "run", events(10), epochs=2).path


def test_items_are_matched_by_label(run, tmp_path):
    """As many items as before, but two others: by position, each would get another one's row."""
    other = train(tmp_path / "other", events(12), epochs=0, init_from=str(run)).path
    old, new = (load_stored(each / "data").items.labels.to_pylist() for each in (run, other))
    assert len(old) == len(new)
    before, after = (
        read_checkpoint(each / name).tensors["weights"]["items.weight"]
        for each, name in ((run, "best"), (other, "final"))
    )
    for label in set(old) & set(new):
        assert torch.equal(before[old.index(label)], after[new.index(label)])
    assert "10 of 12 items" in (other / "train.log").read_text()


def test_what_cannot_be_matched_is_refused_in_one_line(run, tmp_path):
    with pytest.raises(CheckpointError, match=r"none of its items occur in these data"):
        train(tmp_path / "none", events(10, "x"), epochs=1, init_from=str(run))
    copied = tmp_path / "weights"
    shutil.copytree(run / "best", copied)  # in no run: there are no labels
    table = events(10)
    table["item"][0] = "99"
    with pytest.raises(CheckpointError) as caught:
        train(tmp_path / "copied", table, epochs=1, init_from=str(copied))
    assert "items.weight is [12, 8] in it and [13, 8] here" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match=r"other options of the model"):
        hasten.train("sasrec", events(11), settings={**SMALL, "model.width": 4},
                     init_from=str(run), out=tmp_path / "width", quiet=True)  # fmt: skip
    assert not any((tmp_path / name).exists() for name in ("none", "copied", "width"))

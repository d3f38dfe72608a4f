"""The flow of a run: what is refused before there is a folder, and beginning again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from hasten import api, run
from hasten.errors import ConfigurationError, DataError
from tests.contract.cases import sequences
from tests.contract.test_models import fingerprint, records

SMALL = {"model.width": 8, "model.max_length": 12, "device": "cpu", "threads": 1}


def train(out: Path, data: object = None, **settings: object) -> api.Result:
    merged = {**SMALL, "training.epochs": 2, "training.batch_size": 8}
    merged |= {name.replace("__", "."): value for name, value in settings.items()}
    return api.train("sasrec", data or sequences(), settings=merged, out=str(out), quiet=True)


def test_a_protocol_that_cannot_be_followed_leaves_no_folder(tmp_path):
    for settings in (
        {"data__split": "ratio", "evaluation__candidates": "uni100"},
        {"evaluation__mask_history": True, "evaluation__candidates": "uni100"},
    ):
        with pytest.raises(ConfigurationError, match="uni100"):
            train(tmp_path / "run", **settings)
        assert not (tmp_path / "run").exists()


def test_a_user_who_has_everything_leaves_no_negatives(tmp_path):
    events = {"user_id": np.zeros(8, int), "item_id": np.array([0, 1, 2, 0, 1, 2, 0, 1])}
    with pytest.raises(DataError, match="all 3 items in training, so there are no negatives"):
        train(tmp_path / "run", events, model__loss="bce")
    assert not (tmp_path / "run").exists()
    train(tmp_path / "run", events, model__loss="ce")


def test_a_run_that_died_before_its_first_checkpoint_begins_again(tmp_path):
    """Its records are not doubled, and it starts from the same weights as the first time."""
    train(tmp_path / "before", seed=5)
    whole = train(tmp_path / "whole", init_from=str(tmp_path / "before")).path
    died = tmp_path / "died"
    shutil.copytree(whole, died)
    for name in ("checkpoints", "best", "final"):
        shutil.rmtree(died / name)
    run.resume(died, quiet=True)
    assert fingerprint(died) == fingerprint(whole)
    assert records(died) == records(whole)

"""Data with the features of one modality: a run from its beginning, and from its folder."""

from __future__ import annotations

import numpy as np
import pytest

import hasten
from hasten.run import resume


@pytest.mark.parametrize("model", ["mmgcn", "dragon", "bm3", "freedom"])
def test_a_run_on_one_modality_begins_and_resumes(model, tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "text.npy", rng.standard_normal((30, 4), dtype=np.float32))
    events = {"user_id": np.repeat(np.arange(20), 6), "item_id": rng.permutation(120) % 30}
    settings = {"epochs": 1, "threads": 1, "model.width": 4, "evaluation.every": 1}
    settings["data.features"] = {"text": str(tmp_path / "text.npy")}
    out = tmp_path / "run"
    hasten.train(model, events, settings=settings, out=out, quiet=True)
    assert resume(out, changes={"training.epochs": 2}, quiet=True).epochs == 2

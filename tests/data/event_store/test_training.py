"""Training, evaluation and recommendation from a store give what they give from memory."""

from __future__ import annotations

import numpy as np
import pytest

from hasten import api, loaded_run, run
from hasten.config import InteractionOptions
from hasten.data.event_store.mapped import MappedDataset
from hasten.data.event_store.prepare import prepare
from hasten.data.tables import Histories
from hasten.errors import UsageError
from hasten.inference.recommend import recommend
from hasten.testing import fingerprint

SMALL = {"model.width": 8, "device": "cpu", "threads": 1, "training.epochs": 2}
SEQUENCES = {"model.max_length": 6, "training.batch_size": 16}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same events as a file and as a store."""
    folder = tmp_path_factory.mktemp("events")
    random = np.random.default_rng(0)
    user = random.permutation(np.repeat(np.arange(100, 140), random.integers(2, 12, 40)))
    rows = zip(user, random.integers(0, 30, len(user)), random.integers(0, 999, len(user)))  # noqa: B905
    lines = "\n".join(",".join(map(str, row)) for row in rows)
    (folder / "events.csv").write_text(f"user,item,time\n{lines}\n")
    prepare(InteractionOptions(path=str(folder / "events.csv")), folder / "store")
    return folder / "events.csv", folder / "store"


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("sasrec", {**SEQUENCES, "model.loss": "ce", "data.refit": True}),
        ("sasrec", {**SEQUENCES, "model.loss": "gbce", "model.negatives": 3}),
        ("sasrec", {**SEQUENCES, "model.loss": "sampled-softmax", "model.mask_known": True}),
        ("tisasrec", {**SEQUENCES, "model.loss": "bce", "evaluation.users": 9}),
        ("tisasrec", {**SEQUENCES, "evaluation.users": "untied", "data.split": "ratio"}),
        ("bprmf", {}),
    ],
    ids=["ce", "gbce", "sampled-softmax", "sampled-users", "untied", "pairs"],
)
def test_a_store_trains_the_same_weights(model, settings, data, tmp_path, monkeypatch):
    if model != "bprmf":  # sequential models read no column of all events into memory
        monkeypatch.delattr(MappedDataset, "interactions")
        monkeypatch.delattr(MappedDataset, "part")
    found = {}
    for name, path in zip(("memory", "store"), data, strict=True):
        given = {**SMALL, **settings}
        found[name] = api.train(
            model, str(path), settings=given, out=str(tmp_path / name), quiet=True
        )
    for checkpoint in ("best", "final"):
        one, other = (fingerprint(tmp_path / name, checkpoint) for name in found)
        assert one == other
    if "evaluation.users" not in settings or settings["evaluation.users"] == "untied":
        # else of a store those users at the end too
        assert found["memory"].valid_metrics == found["store"].valid_metrics
        assert found["memory"].metrics == found["store"].metrics


def test_a_run_on_a_store_resumes_and_recommends(data, tmp_path, monkeypatch):
    unmapped = Histories.in_memory

    def refuse_mapped(self):
        assert not self.mapped, "all rows in memory"
        return unmapped(self)

    monkeypatch.setattr(Histories, "in_memory", refuse_mapped)
    settings = {**SMALL, **SEQUENCES, "model.loss": "gbce"}
    api.train("sasrec", str(data[1]), settings=settings, out=str(tmp_path / "whole"), quiet=True)
    run.resume(tmp_path / "whole", checkpoint="epoch-0001", out=tmp_path / "two", quiet=True)
    assert fingerprint(tmp_path / "whole") == fingerprint(tmp_path / "two")
    assert (tmp_path / "whole" / "data" / "item.i4").samefile(data[1] / "item.i4")
    lists = recommend(loaded_run.load_run(tmp_path / "two"), users=[100], topk=3)
    assert lists.to_table().num_rows == 3


def test_a_model_that_reads_more_than_events_is_refused(data, tmp_path):
    with pytest.raises(UsageError, match="hold no knowledge graph about the items, which kgat"):
        api.train("kgat", str(data[1]), out=str(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run").exists()

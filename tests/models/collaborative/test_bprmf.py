"""BPR-MF against its equations, and KGAT that starts from it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hasten import api
from hasten.config import PairOptions, TrainingOptions
from hasten.data.interactions.load_features import load_pairs
from hasten.errors import CheckpointError
from hasten.models.collaborative.bprmf import BPRMF, BPRMFOptions
from hasten.models.interface import Sizes
from hasten.runs.checkpoint import read_checkpoint
from tests.models.collaborative.kgat_data import write_layout


def test_loss_and_gradients_are_those_of_the_equations(tmp_path):
    options = PairOptions(path=str(write_layout(tmp_path)))
    dataset = load_pairs(options, 0)
    chosen = BPRMFOptions(width=5, l2=0.03)
    model = BPRMF(chosen, Sizes.of(dataset)).double()
    training = TrainingOptions(batch_size=9)
    (phase,) = model.phases(dataset, training)
    batch = phase.plan(1, 0, 0)
    terms = phase.terms(phase.encode(batch), batch, batch.ids)
    ours = sum(t.numerator * t.weight / t.denominator for t in terms)
    mine = torch.autograd.grad(ours, list(model.parameters()))
    found = phase.pairs(batch, batch.ids)
    u = model.users.weight[found.user]
    i, j = model.items.weight[found.positive], model.items.weight[found.negative]
    bpr = -F.logsigmoid((u * i).sum(1) - (u * j).sum(1))
    norms = (u**2).sum(1) + (i**2).sum(1) + (j**2).sum(1)
    theirs = (bpr + 0.03 * norms / 2).mean()
    torch.testing.assert_close(ours, theirs)
    for mine_, other in zip(
        mine, torch.autograd.grad(theirs, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(mine_, other)


SMALL = {"model.width": 8, "training.epochs": 1, "threads": 1}


def test_kgat_starts_from_its_embeddings(tmp_path):
    folder = str(write_layout(tmp_path / "data"))
    api.train("bprmf", folder, settings=SMALL, out=str(tmp_path / "bprmf"), quiet=True)
    settings = {**SMALL, "training.epochs": 0, "model.layers": [4]}
    settings["init_from"] = str(tmp_path / "bprmf")
    result = api.train("kgat", folder, settings=settings, out=str(tmp_path / "kgat"), quiet=True)
    source = read_checkpoint(tmp_path / "bprmf" / "best").tensors["weights"]
    nodes = read_checkpoint(tmp_path / "kgat" / "final").tensors["weights"]["nodes.weight"]
    items, users = source["items.weight"], source["users.weight"]
    assert torch.equal(nodes[: len(items)], items)
    assert torch.equal(nodes[-len(users) :], users)
    assert len(nodes) > len(items) + len(users)
    settings["model.width"] = 6
    with pytest.raises(CheckpointError, match=r"same data with the same width"):
        api.train("kgat", folder, settings=settings, out=str(tmp_path / "other"), quiet=True)
    assert result.summary.epochs == 0


def test_facts_help_where_events_do_not_tell(tmp_path):
    """On the sample, the same budget with and without the knowledge graph."""
    found = {}
    for model, epochs in (("bprmf", 60), ("kgat", 9)):
        settings = {
            "training.epochs": epochs,
            "training.lr": 3e-3,
            "training.batch_size": 1024,
            "model.sampling": "users",
            "evaluation.every": epochs // 3,
            "threads": 1,
        }
        if model == "kgat":
            settings["model.layers"] = [64, 32, 16]
        result = api.train(model, settings=settings, out=str(tmp_path / model), quiet=True)
        found[model] = result.metrics["recall@20"]
    assert found["kgat"] > 1.3 * found["bprmf"]
    line = json.loads((tmp_path / "kgat" / "metrics.jsonl").read_text().splitlines()[0])
    assert np.isfinite(line["translation.loss"])


@pytest.mark.parametrize("sampling", ["users", "interactions"])
def test_a_step_draws_its_pairs_once_and_shares_are_parts_of_them(tmp_path, monkeypatch, sampling):
    dataset = load_pairs(PairOptions(path=str(write_layout(tmp_path))), 0)
    chosen = BPRMFOptions(width=5, sampling=sampling)
    training = TrainingOptions(batch_size=9)
    (phase,) = BPRMF(chosen, Sizes.of(dataset)).phases(dataset, training)
    batch = phase.plan(1, 0, 1)
    expected = [phase.sample(batch, batch.micro_batch_ids(part, 2)) for part in range(2)]
    asked = []
    draw = phase.sample
    monkeypatch.setattr(phase, "sample", lambda *given: asked.append(given) or draw(*given))
    encoded = phase.encode(batch)
    for part, one in enumerate(expected):
        rows = batch.micro_batch_ids(part, 2)
        phase.terms(encoded, batch, rows)
        found = phase.pairs(batch, rows)
        for name in ("user", "positive", "negative"):
            assert torch.equal(getattr(found, name), getattr(one, name))
    assert len(asked) == 1

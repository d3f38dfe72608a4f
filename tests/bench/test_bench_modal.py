"""The plain sides of MMGCN and DRAGON compute what ours do."""

from __future__ import annotations

import json

import pytest
import torch

from bench import modal_side
from bench.plain_dragon import PlainDRAGON
from bench.plain_mmgcn import PlainMMGCN
from hasten.config import TrainingOptions
from hasten.models.interface import Sizes
from hasten.models.multimodal.dragon import DRAGON, DRAGONOptions
from hasten.models.multimodal.mmgcn import MMGCN, MMGCNOptions
from tests.models.multimodal.modal_data import modal_dataset

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture
def batch():
    return torch.tensor([0, 1, 2, 5]), torch.tensor([0, 2, 4, 7]), torch.tensor([6, 5, 1, 4])


def test_plain_mmgcn_is_ours(batch):
    dataset = modal_dataset()
    options = MMGCNOptions(width=6, latent=7)
    ours = MMGCN(options, Sizes.of(dataset))
    ours.phases(dataset, TrainingOptions())
    plain = PlainMMGCN(dataset, width=6, latent=7)
    with torch.no_grad():
        plain.ids.copy_(ours.ids)
        for mine, theirs in zip(ours.channels, plain.channels, strict=True):
            theirs.users.copy_(mine.users)
            if theirs.project is not None:
                theirs.project.load_state_dict(mine.project.state_dict())
            for number, layer in enumerate(mine.layers):
                theirs.spread[number].weight.copy_(layer.spread)
                theirs.own[number].load_state_dict(layer.own.state_dict())
                theirs.mix[number].load_state_dict(layer.mix.state_dict())
        torch.testing.assert_close(plain.encode(), ours.all_vectors(), **CLOSE)
    plain.loss(*batch).backward()
    assert plain.ids.grad is not None


def test_plain_dragon_is_ours(batch):
    dataset = modal_dataset()
    options = DRAGONOptions(width=4, hidden=5)
    ours = DRAGON(options, Sizes.of(dataset))
    ours.phases(dataset, TrainingOptions())
    plain = PlainDRAGON(dataset, width=4, hidden=5)
    with torch.no_grad():
        plain.shares.copy_(ours.shares[..., None])
        for mine, first, second, users in zip(
            ours.channels, plain.first, plain.second, plain.users, strict=True
        ):
            first.load_state_dict(mine.first.state_dict())
            second.load_state_dict(mine.second.state_dict())
            users.copy_(mine.users)
        users, items = plain.encode()
        torch.testing.assert_close(torch.cat([items, users]), ours.all_vectors(), **CLOSE)
    plain.loss(*batch).backward()


@pytest.mark.parametrize(("how", "apart"), [("hasten", 6), ("plain", 0)])
def test_what_a_side_reports(how, apart, monkeypatch, capsys):
    """Drawing the batches of an epoch and judging are timed apart, on our side alone."""
    monkeypatch.setattr(modal_side, "modal_dataset", lambda name: modal_dataset())
    monkeypatch.setattr(modal_side, "tune_process", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    options = ["--how", how, "--batch-size", "6", "--steps", "2"]
    monkeypatch.setattr("sys.argv", ["modal_side", *options])
    modal_side.main()
    report = json.loads(capsys.readouterr().out)
    assert (report["steps_measured"], report["steps_per_epoch"]) == (2, 3)
    assert report["loss"] > 0
    found = [name for name in report if name.startswith(("sampling", "evaluation"))]
    assert len(found) == apart
    assert all(report[name] > 0 for name in found)

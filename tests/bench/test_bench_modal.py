"""The plain sides of MMGCN and DRAGON compute what ours do; MMRec is given our data."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench import mmrec_side, modal_side
from bench.plain_dragon import PlainDRAGON
from bench.plain_mmgcn import PlainMMGCN
from hasten.config import TrainingOptions
from hasten.models.interface import Sizes
from hasten.models.multimodal.dragon import DRAGON, DRAGONOptions
from hasten.models.multimodal.mmgcn import MMGCN, MMGCNOptions
from hasten.objectives.pairwise import PairwiseExamples
from tests.models.multimodal.modal_data import HELD, ITEMS, USERS, modal_dataset

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
BATCH = (torch.tensor([0, 1, 2, 5]), torch.tensor([0, 2, 4, 7]), torch.tensor([6, 5, 1, 4]))


def loss_of(phase, model):
    """Our loss of the batch."""
    pairs = PairwiseExamples(*BATCH)
    phase.pairs = lambda batch, ids: pairs
    batch = replace(phase.plan(0, 0, 0), denominators={"examples": len(pairs.user)})
    encoded = model.encode_pairs(model.pair_inputs(pairs), 0)
    terms = [*phase.terms(encoded, batch, batch.ids), *phase.regularizers(encoded, batch)]
    return sum(term.numerator * term.weight / term.denominator for term in terms)


@pytest.mark.parametrize("ids", ["trainable", "frozen"])
def test_plain_mmgcn_has_our_loss_and_gradients(ids):
    dataset = modal_dataset()
    ours = MMGCN(MMGCNOptions(width=6, latent=7, ids=ids), Sizes.of(dataset))
    (phase,) = ours.phases(dataset, TrainingOptions())
    plain = PlainMMGCN(dataset, width=6, latent=7, frozen=ids == "frozen")
    with torch.no_grad():
        plain.ids.copy_(ours.ids)
        for mine, theirs in zip(ours.channels, plain.channels, strict=True):
            theirs.users.copy_(mine.users)
            if theirs.project is not None:
                theirs.project.load_state_dict(mine.project.state_dict())
            for layer, other in zip(mine.layers, theirs.layers, strict=True):
                other.spread.weight.copy_(layer.spread)
                other.own.load_state_dict(layer.own.state_dict())
                other.mix.load_state_dict(layer.mix.state_dict())
            theirs.keep_constants()
    found, expected = plain.loss(*BATCH), loss_of(phase, ours)
    torch.testing.assert_close(found, expected, **CLOSE)
    found.backward()
    expected.backward()
    for mine, theirs in zip(ours.channels, plain.channels, strict=True):
        for layer, other in zip(mine.layers, theirs.layers, strict=True):
            torch.testing.assert_close(other.spread.weight.grad, layer.spread.grad, **CLOSE)
        if ids == "trainable":
            torch.testing.assert_close(theirs.users.grad, mine.users.grad, **CLOSE)
    assert (plain.ids.grad is None) == (ids == "frozen")


def test_plain_dragon_has_our_loss_and_gradients():
    dataset = modal_dataset()
    ours = DRAGON(DRAGONOptions(width=4, hidden=5), Sizes.of(dataset))
    (phase,) = ours.phases(dataset, TrainingOptions())
    plain = PlainDRAGON(dataset, width=4, hidden=5)
    with torch.no_grad():
        plain.shares.copy_(ours.shares[..., None])
        for mine, first, second, users in zip(
            ours.channels, plain.first, plain.second, plain.users, strict=True
        ):
            first.load_state_dict(mine.first.state_dict())
            second.load_state_dict(mine.second.state_dict())
            users.copy_(mine.users)
    found, expected = plain.loss(*BATCH), loss_of(phase, ours)
    torch.testing.assert_close(found, expected, **CLOSE)
    found.backward()
    expected.backward()
    torch.testing.assert_close(plain.shares.grad[..., 0], ours.shares.grad, **CLOSE)
    for mine, users in zip(ours.channels, plain.users, strict=True):
        torch.testing.assert_close(users.grad, mine.users.grad, **CLOSE)


def test_companions_share_items_and_the_most_come_first():
    pairs = torch.tensor([(user, item) for user, held in enumerate(HELD) for item in held])
    found = mmrec_side.companions(torch.cat([pairs, pairs[:2]]), USERS)
    sets = [set(held) for held in HELD] + [set()]
    assert list(found) == list(range(USERS))
    for user, (others, counts) in found.items():
        expected = {o: len(sets[user] & sets[o]) for o in range(USERS) if o != user}
        assert dict(zip(others, counts, strict=True)) == {o: c for o, c in expected.items() if c}
        assert counts == sorted(counts, reverse=True)


def test_mmrec_is_given_the_pairs_and_features(monkeypatch, tmp_path):
    (tmp_path / "mm_tiktok" / "derived").mkdir(parents=True)
    for name, line in (("trn", "0\t1\n1\t1\n"), ("val", "1\t2\n1\t0\n"), ("tst", "2\t0\n0\t2\n")):
        (tmp_path / "mm_tiktok" / "derived" / f"{name}.tsv").write_text(line)
    for number, name in enumerate(("image", "audio")):
        np.save(tmp_path / "mm_tiktok" / f"{name}_feat.npy", np.full((ITEMS, 2), number))
    monkeypatch.setattr(mmrec_side, "data_folder", lambda: tmp_path)
    folder = mmrec_side.written("tiktok", tmp_path / "build")
    lines = (folder / "tiktok.inter").read_text().splitlines()
    assert lines == [
        "userID\titemID\tx_label", "0\t1\t0", "1\t1\t0", "1\t2\t1", "1\t0\t1", "2\t0\t2", "0\t2\t2",
    ]  # fmt: skip
    assert np.load(folder / "text_feat.npy").tolist() == [[1.0, 1.0]] * ITEMS
    assert np.load(folder / "user_graph_dict.npy", allow_pickle=True).item()[0] == [[1], [1.0]]
    assert mmrec_side.written("tiktok", tmp_path / "build") == folder


def test_without_a_clone_a_side_says_so(monkeypatch, capsys):
    monkeypatch.delenv("MMREC", raising=False)
    monkeypatch.setattr("sys.argv", ["mmrec_side"])
    with pytest.raises(SystemExit) as ended:
        mmrec_side.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "set MMREC to the folder of a clone of https://github.com/enoche/MMRec\n"
    )


@pytest.mark.parametrize(("how", "apart"), [("hasten", 6), ("plain", 0)])
def test_what_a_side_reports(how, apart, monkeypatch, capsys):
    """Drawing the batches of an epoch and judging are timed apart, on our side alone."""
    monkeypatch.setattr(modal_side, "dataset_named", lambda name: modal_dataset())
    monkeypatch.setattr(modal_side, "configure_process", lambda: None)
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

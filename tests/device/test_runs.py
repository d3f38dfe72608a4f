"""Whole runs of every model on a simulated CUDA device: the command line's way, beside the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hasten import api, run
from hasten.influence.queries import Selection
from hasten.influence.run import Options, compute_influence
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import fingerprint, training_log
from tests.contract.cases import CASES, ModelCase
from tests.device.measure import BY_ROWS, FIRST, read_by_rows
from tests.device.recorder import recording
from tests.device.simulation import simulated

#: losses of the influence that has factors; torch.func sees no simulated device in the others
INFLUENCE = {
    "sasrec": ("training",),
    "tisasrec": ("positive",),
    "conve": ("positive", "training"),
    "distmult": ("training",),
    "complex": ("positive",),
}

#: what takes long and repeats itself
SMALLER = {"hgt": {"model.layers": 1}, "conve": {"model.group": 64}, "mmgcn": {"model.layers": 1}}


def train(case: ModelCase, device: str, out: Path) -> list[dict[str, Any]]:
    """A run of an epoch that is resumed for a second one; the lines of its log with figures."""
    settings = {**case.settings, **case.without_dropout, "device": device, "threads": 1}
    if case.trains:
        settings |= {
            "training.epochs": 1,
            "training.batch_size": 128,
            **SMALLER.get(case.model, {}),
        }
    api.train(case.model, case.data, settings=settings, out=str(out), quiet=True)
    if case.trains:
        run.resume(out, changes={"training.epochs": 2}, quiet=True)
    return [line for line in training_log(out) if line["kind"] != "event"]


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST.keys())
def test_a_run_is_that_of_the_cpu(case, tmp_path):
    """Training, evaluation, checkpoints and a resumed epoch, through the branches of CUDA."""
    with simulated("cuda"), recording() as found:
        ours = train(case, "cuda", tmp_path / "cuda")
        for loss in INFLUENCE.get(case.model, ()):
            selection, options = Selection(part="valid", limit=2), Options(topk=3, loss=loss)
            rows = compute_influence(
                tmp_path / "cuda", selection, options, device="cuda", quiet=True
            )
            assert rows.table.num_rows >= 6
    assert not found.mistakes
    assert found.kernels
    theirs = train(case, "cpu", tmp_path / "cpu")
    assert [line["kind"] for line in ours] == [line["kind"] for line in theirs]
    for one, other in zip(ours, theirs, strict=True):
        if one["kind"] == "train" and case.trains:
            assert one[case.loss] == pytest.approx(other[case.loss], rel=1e-3)
        if one["kind"] == "valid" and not case.trains:
            assert one[case.metric] == pytest.approx(other[case.metric], rel=1e-6)


@pytest.mark.parametrize("label", BY_ROWS)
def test_a_run_with_row_wise_adam_goes_on_bit_for_bit(label, tmp_path, monkeypatch):
    """From a checkpoint in the middle of the epoch, which holds deferred updates."""
    read_by_rows(monkeypatch)
    case = next(case for case in CASES if case.label == label)
    settings = {**case.settings, "training.epochs": 2, "training.batch_size": 8, "threads": 1}
    settings |= {"checkpoint.every_steps": 3, "checkpoint.keep": 500, "device": "cuda"}
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    with simulated("cuda"), recording() as found:
        api.train(case.model, case.data, settings=settings, out=str(whole), quiet=True)
        saved = sorted((whole / "checkpoints").iterdir())
        held = [has_deferred_updates(folder) for folder in saved]
        assert any(held)
        middle = max(number for number, each in enumerate(held[: len(held) // 2 + 2]) if each)
        shutil.copytree(whole, copy)
        for later in saved[middle + 1 :]:
            shutil.rmtree(copy / "checkpoints" / later.name)
        run.resume(copy, quiet=True)
    assert not found.mistakes
    assert fingerprint(copy) == fingerprint(whole)


def has_deferred_updates(folder: Path) -> bool:
    names = read_checkpoint(folder).tensors["optimisers"]
    return any(name.endswith("pending_weight") for name in names)

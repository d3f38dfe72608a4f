"""Modules that do not hold in a lower precision: found, named, pinned to fp32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hasten import api
from hasten.models.sequential.sasrec import SASRec
from hasten.run import resume
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import assert_same, training_log
from tests.contract.cases import sequences

CULPRIT = "final_norm.culprit"
USUAL = {"training.batch_size": 8, "training.epochs": 3, "device": "cpu", "threads": 1}
SMALL = {"model.width": 16, "model.max_length": 12}


class Culprit(nn.Module):
    """The identity, if it is computed in fp32: x f + s - s, divided by f."""

    def __init__(self, width: int, factor: float, shift: float) -> None:
        super().__init__()
        self.width, self.factor, self.shift = width, factor, shift

    def forward(self, x):
        return (F.linear(x, torch.eye(self.width) * self.factor) + self.shift - self.shift) / (
            self.factor
        )


class NormAndCulprit(nn.Module):
    def __init__(self, norm: nn.Module, culprit: Culprit) -> None:
        super().__init__()
        self.norm, self.culprit = norm, culprit

    def forward(self, x):
        return self.culprit(self.norm(x))


@pytest.fixture
def plant(monkeypatch):
    def planted(factor, shift):
        original = SASRec.build_blocks

        def build(self):
            original(self)
            self.final_norm = NormAndCulprit(self.final_norm, Culprit(16, factor, shift))

        monkeypatch.setattr(SASRec, "build_blocks", build)

    return planted


@pytest.fixture(autouse=True)
def _fast_bf16(monkeypatch):
    monkeypatch.setattr("hasten.training.precision.cpu_computes_bf16", lambda: True)


def train(out, **settings):
    given = {**USUAL, **SMALL, **{k.replace("__", "."): v for k, v in settings.items()}}
    return api.train("sasrec", sequences(), settings=given, out=str(out), quiet=True)


def losses(folder):
    return [each["loss"] for each in training_log(folder) if each["kind"] == "train"]


def test_auto_that_pins_nothing_equals_bf16(tmp_path):
    auto = train(tmp_path / "auto", training__precision="auto")
    train(tmp_path / "bf16", training__precision="bf16")
    assert auto.summary.effective["pinned"] is None
    assert auto.summary.effective["precision"] == "bf16"
    assert_same(tmp_path / "auto", tmp_path / "bf16")
    assert losses(tmp_path / "auto") == losses(tmp_path / "bf16")
    assert "precision auto: bf16\n" in (tmp_path / "auto" / "train.log").read_text()


def test_auto_pins_the_module_that_deviates_in_bf16(tmp_path, plant):
    plant(1.0, 1000.0)
    result = train(tmp_path / "auto", training__precision="auto")
    pinned = result.summary.effective["pinned"]
    assert list(pinned) == [CULPRIT]
    assert pinned[CULPRIT]["deviation"] > 0.2
    assert result.summary.effective["precision"] == "bf16"
    assert f"the output of {CULPRIT} deviates" in (tmp_path / "auto" / "train.log").read_text()
    train(tmp_path / "fp32")
    assert losses(tmp_path / "auto") == pytest.approx(losses(tmp_path / "fp32"), rel=5e-3)


def test_a_resumed_run_keeps_what_is_pinned(tmp_path, plant):
    plant(1.0, 1000.0)
    train(tmp_path / "whole", training__precision="auto")
    train(tmp_path / "part", training__precision="auto", training__epochs=1)
    assert CULPRIT in read_checkpoint(tmp_path / "part" / "final").state["pinned"]
    resume(tmp_path / "part", changes={"training.epochs": 3}, quiet=True)
    assert_same(tmp_path / "whole", tmp_path / "part")


def test_a_module_that_overflows_in_fp16_is_named_and_pinned(tmp_path, plant):
    plant(1e6, 0.0)
    settings = {"training__emulate_fp16": True, "training__bad_steps": 2}
    result = train(tmp_path / "fp16", training__precision="fp16", **settings)
    assert list(result.summary.effective["pinned"]) == [CULPRIT]
    assert result.summary.effective["pinned"][CULPRIT]["deviation"] is None
    assert result.summary.effective["precision"] == "fp16"
    assert result.summary.effective["bad_steps"] == 2
    log = (tmp_path / "fp16" / "train.log").read_text()
    assert f"{CULPRIT} runs in fp32 from now on (the output of {CULPRIT} is not finite" in log
    assert "phase next_item, batch 1. The weights are those after step 0" in log

"""Modules that do not hold in a lower precision: found, named, pinned to fp32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hasten import api
from hasten.comparison.run import compare_finished
from hasten.comparison.verdict import Criteria, Margin
from hasten.models.sequential.sasrec import SASRec
from hasten.run import resume
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import assert_same, training_log
from hasten.training.mixed_precision import pins
from hasten.training.step import OptimizerStep
from tests.contract.cases import graph, sequences
from tests.training.test_memory_recovery import failing

CULPRIT = "final_norm.culprit"
USUAL = {
    "training.batch_size": 8,
    "training.epochs": 3,
    "training.schedule": "constant",
    "device": "cpu",
    "threads": 1,
}
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


def test_auto_where_bf16_is_only_emulated_equals_fp32(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.training.precision.cpu_computes_bf16", lambda: False)
    auto = train(tmp_path / "auto", training__precision="auto")
    train(tmp_path / "fp32", training__precision="fp32")
    assert auto.summary.effective["precision"] == "fp32"
    assert_same(tmp_path / "auto", tmp_path / "fp32")
    assert "precision auto: fp32\n" in (tmp_path / "auto" / "train.log").read_text()


def test_auto_pins_the_module_that_deviates_in_bf16(tmp_path, plant):
    plant(1.0, 1000.0)
    # without dropout, whose masks are of padded batches in bf16
    result = train(tmp_path / "auto", training__precision="auto", model__dropout=0.0)
    pinned = result.summary.effective["pinned"]
    assert list(pinned) == [CULPRIT]
    assert pinned[CULPRIT]["deviation"] > 0.2
    assert result.summary.effective["precision"] == "bf16"
    assert f"the output of {CULPRIT} deviates" in (tmp_path / "auto" / "train.log").read_text()
    train(tmp_path / "fp32", model__dropout=0.0)
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


@pytest.mark.parametrize(
    ("factor", "precision", "expected"),
    [(1.0, "auto", "equivalent"), (1.0, "bf16", "worse"), (1e6, "fp16", "equivalent")],
)
def test_the_quality_of_pinned_modules_is_that_of_fp32(
    factor, precision, expected, tmp_path, plant
):
    """As ``hasten compare`` judges it; unpinned, the module loses what it computes."""
    plant(factor, 30000.0 if factor == 1 else 0.0)
    users, steps = torch.meshgrid(torch.arange(30), torch.arange(8), indexing="ij")
    columns = {"user_id": users, "item_id": (users + steps) % 15, "timestamp": steps}
    data = {name: values.flatten().numpy() for name, values in columns.items()}
    settings = {**USUAL, **SMALL, "training.epochs": 5, "training.lr": 0.01, "model.dropout": 0.0}
    fp16 = {"training.emulate_fp16": True, "training.bad_steps": 2}
    for name in ("fp32", precision):
        given = {**settings, **(fp16 if name == "fp16" else {}), "training.precision": name}
        api.train("sasrec", data, settings=given, out=str(tmp_path / name), quiet=True)
    runs = [tmp_path / "fp32", tmp_path / precision]
    found = compare_finished(runs, Criteria(Margin(0.01, True)))
    assert list(found.verdicts().values()) == [expected]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("factor", "precision"), [(1.0, "auto"), (1e6, "fp16")])
def test_a_pinned_module_runs_in_fp32_when_compiled(
    factor, precision, tmp_path, plant, monkeypatch
):
    """Pinned before the first compilation, and after it. The real compiler would take 30 s."""
    compiler, graphs = torch.compile, []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda f, **_: compiler(f, backend=backend, dynamic=True))
    plant(factor, 1000.0 if factor == 1 else 0.0)
    settings = {"training__precision": precision, "model__dropout": 0.0}
    if precision == "fp16":
        settings |= {"training__emulate_fp16": True, "training__bad_steps": 2}
    found = train(tmp_path / "compiled", training__compile="default", **settings)
    train(tmp_path / "eager", **settings)
    assert list(found.summary.effective["pinned"]) == [CULPRIT]
    assert found.summary.effective["compile"][0]["in_effect"]
    assert graphs
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), rel=1e-3)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_comparison_that_runs_out_of_memory(failures, tmp_path, plant, monkeypatch):
    """It is repeated with more micro-batches; where nothing helps, it is left out."""
    plant(1.0, 1000.0)
    with monkeypatch.context() as patch:
        failing(patch, OptimizerStep, "encode", range(1, failures + 1))
        found = train(tmp_path / "run", training__precision="auto").summary.effective
    assert found["retreats"] is None
    log = (tmp_path / "run" / "train.log").read_text()
    if failures == 1:
        assert list(found["pinned"]) == [CULPRIT]
    else:
        assert found["pinned"] is None
        assert "precision auto: bf16; phase next_item was not compared with fp32: memory" in log


def test_a_phase_without_a_module_to_pin_runs_in_fp32_as_a_whole(tmp_path, monkeypatch):
    """What deviates is the loss: embeddings and their product belong to no module."""
    monkeypatch.setattr(pins, "OUTPUT_TOLERANCE", 1e-9)
    settings = {**USUAL, "model.width": 8}
    for name in ("auto", "fp32"):
        settings["training.precision"] = name
        api.train("distmult", graph(), settings=settings, out=str(tmp_path / name), quiet=True)
    log = (tmp_path / "auto" / "train.log").read_text()
    assert "in fp32: the whole phase completion (the loss deviates by" in log
    assert "and no single module is the cause" in log
    assert losses(tmp_path / "auto") == losses(tmp_path / "fp32")

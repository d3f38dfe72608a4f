"""``doctor --step``: the parts of a step are measured, add up, and lead to advice."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hasten.cli.main import main
from hasten.config import RunConfig
from hasten.config_loading.build import build_config
from hasten.models.sequential.sasrec import SASRec
from hasten.models.supports import Supports
from hasten.objectives.next_item import NextItemPhase
from hasten.profiling.advice import Circumstances, advise
from hasten.profiling.profile import profile_step
from hasten.profiling.timed_step import PARTS
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, sequences

SMALL = {"model.width": 8, "training.batch_size": 8, "device": "cpu", "threads": 1}


def configured(model: str = "sasrec", **settings: object) -> RunConfig:
    given = {**SMALL, **{name.replace("__", "."): value for name, value in settings.items()}}
    return build_config(model, None, None, (), given)


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr("hasten.profiling.profile._MAX_STEPS", 3)


@pytest.mark.parametrize("case", [c for c in CASES if c.trains], ids=lambda case: case.label)
def test_every_model_is_measured(case):
    given = {**case.settings, "device": "cpu", "threads": 1}
    found = profile_step(build_config(case.model, None, None, (), given), case.data)
    assert found["model"] == case.model
    for phase in found["phases"]:
        assert phase["measured_steps"] == 3
        assert phase["milliseconds"].keys() == set(PARTS)
        for part in ("data", "forward", "backward", "optimizer"):
            assert phase["milliseconds"][part] > 0
        assert phase["milliseconds"]["communication"] == 0
    assert found["evaluation"]["batches"] >= 1
    assert sum(found["epoch"]["shares"].values()) == pytest.approx(1)
    assert found["bottleneck"] in found["epoch"]["shares"]
    assert 1 <= len(found["advice"]) <= 2


@pytest.fixture
def clock(monkeypatch):
    """Only what is slow takes time; a reading of the clock takes 10 µs."""
    clock = SimpleNamespace(now=0.0)

    def perf_counter():
        clock.now += 1e-5
        return clock.now

    for module in ("hasten.profiling.timed_step", "hasten.evaluation.ranker"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(perf_counter=perf_counter))
    return clock


def slowed(function, seconds, clock):
    def slow(*arguments, **names):
        clock.now += seconds
        return function(*arguments, **names)

    return slow


@pytest.mark.parametrize(
    ("part", "kind", "name"),
    [
        ("data", NextItemPhase, "micro_batch_inputs"),
        ("forward", SASRec, "next_item_loss"),
        ("optimizer", OptimizerStep, "update"),
        ("evaluation", SASRec, "scorer"),
    ],
)
def test_what_is_slow_is_the_bottleneck(part, kind, name, clock, monkeypatch):
    seconds = 0.3 if part == "evaluation" else 0.03
    monkeypatch.setattr(kind, name, slowed(getattr(kind, name), seconds, clock))
    # an evaluation after every epoch: otherwise it is shared among the steps of many
    found = profile_step(configured(evaluation__every=1), sequences())
    assert found["bottleneck"] == part
    if part != "evaluation":
        (phase,) = found["phases"]
        assert phase["milliseconds"][part] >= 30
        others = (phase["milliseconds"][each] for each in PARTS if each != part)
        assert sum(others) < 30


def test_a_slow_backward_is_told_from_the_forward(clock, monkeypatch):
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            clock.now += 0.03
            return gradient

    real = SASRec.next_item_loss
    monkeypatch.setattr(SASRec, "next_item_loss", lambda *given: Slow.apply(real(*given)))
    found = profile_step(configured(training__accumulate=2), sequences())
    assert found["bottleneck"] == "backward"
    assert found["phases"][0]["milliseconds"]["backward"] >= 60


def test_the_command_shows_and_prints_it(capsys):
    flags = ["--batch-size", "64", "--threads", "1", "--device", "cpu", "--set", "model.width=8"]
    assert main(["doctor", "--step", "sasrec", *flags, "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["model"], found["batch_size"]) == ("sasrec", 64)
    for text in (
        "step of next_item",
        "backward",
        "evaluation:",
        f"bottleneck: {found['bottleneck']}",
    ):
        assert text in shown.err
    assert found["advice"][0]["option"] in shown.err


@pytest.mark.slow
def test_two_processes_communicate(capfd):
    flags = ["--batch-size", "64", "--threads", "1", "--device", "cpu", "--set", "model.width=8"]
    assert main(["doctor", "--step", "sasrec", *flags, "--devices", "2", "--json"]) == 0
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert found["devices"] == 2
    assert found["phases"][0]["milliseconds"]["communication"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sasrec", "--out", "x"], "--out has no effect with --step"),
        (["sasrec", "--memory-budget", "1GB"], "--memory-budget has no effect with --step"),
        (["sasrec", "--quiet"], "--quiet has no effect with --step"),
        (["sasrec", "--bach-size", "4"], "did you mean '--batch-size'?"),
        (["pop"], "fitted in one pass"),
        (["sasrex"], "sasrec"),
        (["sasrec", "--set", "model.nothing=1"], "nothing"),
    ],
)
def test_wrong_usage_is_refused(words, told, capsys):
    assert main(["doctor", "--step", *words]) == 2
    assert told in capsys.readouterr().err


def test_train_options_without_step_are_refused(capsys):
    assert main(["doctor", "sasrec", "--batch-size", "4"]) == 2
    assert "hasten doctor" in capsys.readouterr().err


NOW = Circumstances(
    config=configured(training__batch_size=128),
    device="cpu",
    processes=1,
    backend=None,
    precision="fp32",
    threads=2,
    cpus=2,
    supports=Supports(recompute=True, compile=True),
    train_seconds=10.0,
    evaluation_seconds=5.0,
)


def advised(bottleneck: str, now: Circumstances = NOW) -> list[str]:
    return [each.option for each in advise(bottleneck, now)]


def test_advice_fits_what_is_set(monkeypatch):
    monkeypatch.setattr("hasten.training.precision.cpu_computes_bf16", lambda: False)
    assert advised("forward") == ["--compile auto", "--batch-size 256"]
    assert advised("backward", replace(NOW, threads=1))[0] == "--threads 2"
    assert advised("evaluation") == ["--eval-every 5"]
    assert advised("optimizer") == ["--batch-size 256"]
    assert advised("data", replace(NOW, cpus=4)) == ["--batch-size 256", "--devices 2"]
    assert advised("communication", replace(NOW, processes=2)) == [
        "--batch-size 256", "--devices 1"
    ]  # fmt: skip
    on_gpus = replace(NOW, device="cuda", backend="gloo", processes=2)
    assert advised("communication", on_gpus)[0] == "--backend nccl"
    assert advised("backward", replace(NOW, precision="bf16"))[0] == "--precision auto"
    saving = configured(training__recompute=True, training__accumulate=4)
    assert advised("backward", replace(NOW, config=saving)) == ["--no-recompute", "--accumulate 2"]
    monkeypatch.setattr("hasten.training.precision.cpu_computes_bf16", lambda: True)
    assert advised("forward")[0] == "--precision auto"
    assert "--precision auto" not in advised("forward", replace(NOW, precision="bf16"))

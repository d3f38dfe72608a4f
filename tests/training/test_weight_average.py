"""Averaged weights: their equation, what training, resuming and evaluation make of them."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from torch import nn

from hasten import run
from hasten.evaluation.ranker import evaluate
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import fingerprint, training_log
from hasten.training.optimizers import row_adam
from hasten.training.weight_average import WeightAverage
from tests.contract.cases import CASES
from tests.contract.test_models import train as train_case
from tests.training.test_trainer import train


class Tied(nn.Module):
    """A parameter under two names, a running figure, a counter, and what is never saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2, dtype=torch.float64)
        self.second = nn.Linear(3, 2, bias=False, dtype=torch.float64)
        self.second.weight = self.first.weight
        self.register_buffer("running", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def tensors(folder):
    return read_checkpoint(folder).tensors


def test_it_follows_the_equation():
    """The weights of each step added up at the end, in place of one after the other."""
    torch.manual_seed(0)
    model = Tied()
    epochs, steps = 2.0, 50
    average = WeightAverage(model, epochs, steps)
    every, seen = 5, []  # a twentieth of 100 steps
    assert [step for step in range(1, 21) if average.due(step)] == [5, 10, 15, 20]
    for step in range(1, 301):
        with torch.no_grad():
            model.first.weight += torch.randn(2, 3)
            model.running += torch.rand(4)
            model.count += 1
        if average.due(step):
            average.update()
            seen.append((model.first.weight.detach().clone(), model.running.clone()))
    share = 1 - math.exp(-every / (epochs * steps))
    parts = [max(share, 3 / (n + 3)) for n in range(len(seen))]
    assert parts[0] == 1
    assert parts[-1] == share  # long enough for both sides of the maximum
    left = [math.prod(1 - later for later in parts[n + 1 :]) for n in range(len(parts))]
    saved = average.of(model.state_dict())
    for place, name in enumerate(("first.weight", "running")):
        expected = sum(
            part * rest * both[place] for part, rest, both in zip(parts, left, seen, strict=True)
        )
        torch.testing.assert_close(saved[name], expected)
    assert saved["second.weight"] is saved["first.weight"]
    assert saved["count"] == 300
    assert "scratch" not in saved


def test_the_model_has_the_averages_for_a_while_and_then_its_own_weights():
    model = Tied()
    average = WeightAverage(model, 1.0, 10)
    average.update()
    with torch.no_grad():
        model.first.weight += 1
        model.running += 2
    places = [p.data_ptr() for p in model.parameters()]
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def look() -> None:
        with average.applied():
            torch.testing.assert_close(model.first.weight, own["first.weight"] - 1)
            assert model.second.weight is model.first.weight
            assert model.running.tolist() == [0.0] * 4
            raise KeyError

    with pytest.raises(KeyError):
        look()
    assert all(torch.equal(own[name], tensor) for name, tensor in model.state_dict().items())
    assert [p.data_ptr() for p in model.parameters()] == places


def test_an_epoch_of_few_steps_and_an_average_of_many_epochs_has_a_beginning():
    """Judged after one epoch, it is made of weights that were trained."""
    average = WeightAverage(Tied(), 100.0, 3)
    assert [average.due(step) for step in (1, 2, 3)] == [False, False, True]


def test_training_takes_the_same_steps_and_the_averages_are_judged_and_kept(tmp_path):
    settings = {"training__epochs": 4, "training__lr": 1e-2}
    plain = train(tmp_path / "plain", **settings)
    result = train(tmp_path / "run", **settings, training__average=1.5)
    assert plain.summary.effective["average"] is None
    assert result.summary.effective["average"] == 1.5
    weights = tensors(tmp_path / "plain" / "final")["weights"]
    final = tensors(tmp_path / "run" / "final")
    assert "training" not in tensors(tmp_path / "plain" / "final")
    for name, tensor in weights.items():
        assert torch.equal(final["training"][name], tensor)
        assert not torch.equal(final["weights"][name], tensor)
    losses = [[r["loss"] for r in training_log(tmp_path / n) if r["kind"] == "train"] for n in
              ("plain", "run")]  # fmt: skip
    assert losses[0] == losses[1]
    valid = {r["epoch"]: r for r in training_log(tmp_path / "run") if r["kind"] == "valid"}
    assert valid[4] != next(
        r for r in training_log(tmp_path / "plain") if r["kind"] == "valid" and r["epoch"] == 4
    )
    # what is kept as the best gives the figures of the epoch that it was selected for
    best = result.summary.best_epoch
    assert result.valid_metrics == {m: valid[best][m] for m in result.valid_metrics}


@pytest.mark.parametrize("stop", ["epoch-0001-step-000003", "epoch-0003"])
def test_a_run_goes_on_bit_for_bit(stop, tmp_path):
    settings = {
        "training__epochs": 4,
        "training__average": 0.7,
        "checkpoint__every_steps": 1,
        "checkpoint__keep": 500,
    }
    train(tmp_path / "whole", **settings)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    run.resume(tmp_path / "run", checkpoint=stop, quiet=True)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
    assert fingerprint(tmp_path / "run", "best") == fingerprint(tmp_path / "whole", "best")
    assert training_log(tmp_path / "run") == training_log(tmp_path / "whole")


def test_rows_that_are_moved_when_they_are_read_are_averaged_as_of_then(monkeypatch, tmp_path):
    """Lazy rows: their averages are those of the dense optimiser."""
    case = next(case for case in CASES if case.label == "kgat")
    settings = {"training__average": 0.5}
    train_case(case, tmp_path / "dense", **settings)
    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", 1)
    train_case(case, tmp_path / "rows", **settings)
    for group in ("weights", "training"):
        dense, rows = (tensors(tmp_path / name / "final")[group] for name in ("dense", "rows"))
        assert not torch.equal(dense["nodes.weight"], rows["nodes.weight"])  # other rounding
        for name, value in dense.items():
            torch.testing.assert_close(rows[name], value, rtol=1e-4, atol=1e-5)


def test_the_averages_are_in_place_for_every_evaluation_and_only_then(monkeypatch, tmp_path):
    """The scores are those of the weights that a checkpoint calls the run's."""
    seen = []

    def look(model, *rest, **named):
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return evaluate(model, *rest, **named)

    monkeypatch.setattr("hasten.build.evaluate", look)
    train(tmp_path / "run", training__epochs=2, training__average=1, checkpoint__keep=9)
    for epoch in (1, 2):
        found = tensors(tmp_path / "run" / "checkpoints" / f"epoch-{epoch:04d}")
        for name, value in found["weights"].items():
            assert torch.equal(seen[epoch - 1][name], value)
            assert not torch.equal(found["training"][name], value)

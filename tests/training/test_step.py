"""The optimiser step: the guard, clipping, precision, schedules, the way down."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hasten.config import Patience, TrainingOptions
from hasten.objectives.base import Batch, Phase, Term
from hasten.training.early_stopping import EarlyStopping
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.nonfinite import first_nonfinite_tensor
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.precision import Precision, resolve_precision
from hasten.training.schedule import Schedule
from hasten.training.step import OptimizerStep

CPU = torch.device("cpu")


class Line(nn.Module):
    """y = w x; ``poison`` is added to the loss of one row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)


class LinePhase(Phase):
    name = "line"

    def __init__(self, model: Line) -> None:
        self.model, self.poison, self.weight = model, 1.0, 1e-3

    def steps(self) -> int:
        return 1

    def plan(self, seed, epoch, index):
        return Batch(torch.arange(6), seed, epoch, index, {"rows": 6.0})

    def terms(self, encoded, batch, ids):
        out = self.model.layer(ids[:, None].float().expand(-1, 4)) - 1
        weights = torch.where(ids == 3, self.poison, 1.0)
        return [
            Term("loss", ((out**2).sum(1) * weights).sum(), batch.denominators["rows"], self.weight)
        ]

    def parameters(self):
        return list(self.model.parameters())

    def examples(self, batch):
        return 6


def _step(precision="fp32", **options):
    model = Line()
    phase = LinePhase(model)
    step = OptimizerStep(
        phase, 0, TrainingOptions(**options), Precision(precision, CPU), DataParallelRank(), CPU
    )
    return model, phase, step


def _bytes(model, step):
    tensors = [p.detach() for p in model.parameters()]
    for parameter in model.parameters():
        tensors += list(step.optimizer.state[parameter].values())
    return b"".join(t.numpy().tobytes() for t in tensors)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_bad_step_changes_no_byte(precision, poison, accumulate):
    model, phase, step = _step(precision, accumulate=accumulate, clip_norm=1.0, weight_decay=0.1)
    for index in range(3):
        step(phase.plan(0, 0, index), 0.01)
    before = _bytes(model, step)
    phase.poison = poison
    losses = step(phase.plan(0, 0, 3), 0.01)
    assert _bytes(model, step) == before
    assert int(step.consecutive_nonfinite_steps) == 1
    assert all(float(value) == 0 for value in losses.values())
    phase.poison = 1.0
    step(phase.plan(0, 0, 4), 0.01)
    assert _bytes(model, step) != before
    assert int(step.consecutive_nonfinite_steps) == 0
    assert int(step.nonfinite_steps) == 1


def test_the_first_nonfinite_tensor_is_named():
    model, phase, step = _step()
    phase.poison = math.nan
    assert first_nonfinite_tensor(step, phase.plan(0, 0, 0), model) == "loss term loss"
    phase.poison = 1.0
    with torch.no_grad():
        model.layer.bias[1] = math.inf
    assert first_nonfinite_tensor(step, phase.plan(0, 0, 0), model) == "parameter layer.bias"


@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_clipping_sees_unscaled_gradients(scale):
    model, phase, step = _step("fp16", clip_norm=0.001)
    assert step.precision.scaler is not None
    step.precision.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    step(phase.plan(0, 0, 0), 0.0)
    clipped = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert float(clipped) == pytest.approx(0.001, rel=1e-4)


@pytest.mark.parametrize("kind", [2.0, 1.0, 3.0, "inf"])
def test_clipping_is_torchs(kind):
    model, phase, step = _step(clip_norm=0.002, clip_norm_type=kind)
    step(phase.plan(0, 0, 0), 0.0)
    ours = [p.grad.clone() for p in model.parameters()]
    model, phase, step = _step()
    step(phase.plan(0, 0, 0), 0.0)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.002, float(kind))
    for a, p in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_update_is_the_published_one(optimizer):
    """Adam (Kingma & Ba 2015, algorithm 1) with L2, or AdamW's decoupled decay, by hand."""
    options = {"optimizer": optimizer, "betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-8}
    model, phase, step = _step(**options)
    weight = model.layer.weight.detach().double().clone()
    first = second = torch.zeros_like(weight)
    for t in range(1, 4):
        step(phase.plan(0, 0, t), 0.01)
        gradient = model.layer.weight.grad.double()
        if optimizer == "adam":
            gradient = gradient + 0.1 * weight
        else:
            weight = weight * (1 - 0.01 * 0.1)
        first = 0.8 * first + 0.2 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        corrected = (second / (1 - 0.95**t)).sqrt() + 1e-8
        weight = weight - 0.01 * (first / (1 - 0.8**t)) / corrected
        torch.testing.assert_close(
            model.layer.weight.detach().double(), weight, rtol=1e-5, atol=1e-7
        )


def test_schedules_at_their_corners():
    shape = {"lr": 1.0, "min_lr": 0.1, "warmup": 10, "total": 110}
    for name in ("constant", "linear", "cosine"):
        schedule = Schedule(shape=name, **shape)
        assert schedule.at(0) == pytest.approx(0.1)
        assert schedule.at(9) == pytest.approx(1.0)
        assert schedule.at(10) == pytest.approx(1.0)
    assert Schedule(shape="constant", **shape).at(109) == 1.0
    assert Schedule(shape="linear", **shape).at(60) == pytest.approx(0.55)
    assert Schedule(shape="cosine", **shape).at(60) == pytest.approx(0.55)
    assert Schedule(shape="linear", **shape).at(110) == pytest.approx(0.1)
    assert Schedule(shape="cosine", **shape).at(500) == pytest.approx(0.1)
    falling = Schedule(shape="inverse-sqrt", **shape)
    assert [falling.at(step) for step in (0, 9, 10, 13, 109)] == pytest.approx(
        [0.1, 1.0, 1.0, 0.5, 0.1]
    )


def test_adam_without_momentum_on_an_inverse_square_root_schedule_is_adagrad():
    torch.manual_seed(0)
    options = TrainingOptions(
        lr=0.1, schedule="inverse-sqrt", betas=(0.0, 0.999999), eps=1e-12, epochs=1
    )
    weight, other = (nn.Parameter(torch.full((7,), 0.3, dtype=torch.float64)) for _ in range(2))
    adam, schedule = PhaseAdam([weight], options), Schedule.of(options, 40)
    adagrad = torch.optim.Adagrad([other], lr=0.1)
    for step in range(40):
        gradient = torch.randn(7, dtype=torch.float64)
        weight.grad, other.grad = gradient, gradient.clone()
        adam.set_rate(schedule.at(step))
        adam.step()
        adagrad.step()
    torch.testing.assert_close(weight, other, rtol=1e-4, atol=1e-4)


def test_the_way_down_goes_through_every_precision_once():
    precision = Precision("fp16", CPU)
    assert precision.scaler is not None
    lower = precision.lower()
    assert lower.name == "bf16"
    assert lower.lower().name == "fp32"
    assert lower.lower().lower() is None


def test_a_scaler_survives_its_state():
    precision = Precision("fp16", CPU)
    precision.scaler.scale(torch.zeros(()))
    precision.scaler.update(1024.0)
    again = Precision.from_state(precision.state(), CPU)
    assert again.scaler.get_scale() == 1024.0


def test_auto_precision_is_one_of_the_two():
    assert resolve_precision("auto", CPU) in ("bf16", "fp32")
    assert resolve_precision("fp16", CPU) == "fp16"


def test_selection_takes_the_best_and_never_a_bad_number():
    selection = EarlyStopping("ndcg@10", Patience(count=2, unit="evaluations"))
    assert not selection.update(math.nan, 1)
    assert selection.best is None
    assert selection.update(0.1, 2)
    assert not selection.update(math.inf, 3)
    assert not selection.exhausted
    assert not selection.update(0.1, 4)
    assert selection.exhausted
    assert selection.best_epoch == 2


def test_patience_in_epochs_and_low_metrics():
    selection = EarlyStopping("mr", Patience(count=10, unit="epochs"))
    assert selection.update(50.0, 3)
    assert selection.update(40.0, 6)
    assert not selection.update(45.0, 9)
    assert not selection.exhausted
    assert not selection.update(45.0, 16)
    assert selection.exhausted
    copy = EarlyStopping("mr", Patience(count=10, unit="epochs"))
    copy.load_state(selection.state())
    assert copy == selection

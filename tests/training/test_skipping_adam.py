"""Steps that are skipped where the fused kernel does not skip them."""

from __future__ import annotations

import math

import torch
from torch import nn

from hasten.config import TrainingOptions
from hasten.training.optimizers import make
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.optimizers.skipping_adam import SkippingAdam, respects_found_inf
from tests.device.simulation import simulated


def steps(kind, gradients):
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer, seen = kind([weight], TrainingOptions(lr=0.1)), []
    for gradient in gradients:
        weight.grad = torch.tensor([gradient, 1.0])
        optimizer.grad_scale = None
        optimizer.found_inf = (~torch.isfinite(weight.grad).all()).float()
        optimizer.step()
        state = optimizer.state[weight]
        seen.append([weight.tolist(), *(state[k].tolist() for k in sorted(state))])
    return seen


def test_bad_gradients_change_nothing_from_the_first_step_on():
    gradients = [math.nan, 0.5, math.inf, -0.3, math.nan]
    assert steps(SkippingAdam, gradients) == steps(PhaseAdam, gradients)
    assert steps(SkippingAdam, [math.nan])[0][0] == [1.0, -2.0]


def test_the_kernel_of_the_cpu_is_found_to_skip_and_a_heedless_one_is_replaced(monkeypatch):
    cpu = torch.device("cpu")
    respects_found_inf.cache_clear()
    assert respects_found_inf(cpu)
    plain = torch.optim.Adam.step

    def heedless(self, closure=None):
        self.found_inf = None
        return plain(self, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", heedless)
    respects_found_inf.cache_clear()
    assert not respects_found_inf(cpu)
    respects_found_inf.cache_clear()


def test_mps_takes_it_only_where_the_probe_fails(monkeypatch):
    with simulated("mps") as device:

        class OfOneWeight:
            table = None

            def parameters(self):
                return [nn.Parameter(torch.ones(2).to(device))]

        for skips, kind in ((True, PhaseAdam), (False, SkippingAdam)):
            monkeypatch.setattr(make, "respects_found_inf", lambda _, skips=skips: skips)
            made = make.make_optimizer(OfOneWeight(), TrainingOptions(), scaled=False)
            assert type(made) is kind

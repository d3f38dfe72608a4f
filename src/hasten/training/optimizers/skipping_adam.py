"""Adam for devices whose fused kernel updates weights although ``found_inf`` is 1.

PyTorch's fused Adam on MPS did so before pull request 186360 (2026).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import nn

from hasten.training.optimizers.adam import PhaseAdam


@cache
def respects_found_inf(device: torch.device) -> bool:
    """Whether the fused Adam of this device leaves a weight alone if ``found_inf`` is 1: tried."""
    weight = nn.Parameter(torch.ones(1, device=device))
    weight.grad = torch.full_like(weight, math.nan)
    probe = torch.optim.Adam([weight], fused=True)
    probe.grad_scale, probe.found_inf = None, torch.ones((), device=device)  # type: ignore[attr-defined]
    probe.step()
    return weight.tolist() == [1.0]


class SkippingAdam(PhaseAdam):
    """:class:`PhaseAdam` that puts weights and moments back itself, without a synchronization.

    Takes a copy of both in every step.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        skip, self.found_inf = self.found_inf, None
        if skip is None:
            return super().step(closure)
        before = [
            (parameter, parameter.clone(), {k: v.clone() for k, v in self.state[parameter].items()})
            for parameter in self.parameters
        ]
        result, taken = super().step(closure), skip == 0
        for parameter, weight, fields in before:
            parameter.copy_(torch.where(taken, parameter, weight))
            for name, value in self.state[parameter].items():
                earlier = fields.get(name)  # None: made in this step, from zeros
                value.copy_(torch.where(taken, value, 0.0 if earlier is None else earlier))
        return result

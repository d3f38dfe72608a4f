"""Losses in fp16: gradients far below its range reach the weights, because losses are scaled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.models.supports import Supports
from hasten.registry import load_model
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision, PrecisionName
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, ModelCase

#: by which the sums of a loss are divided beside the size of the batch: as in a batch so much
#: larger, the gradient of an example is below 6e-8, the least number above zero in fp16
LARGER = 2.0**20
MIXED = [case for case in CASES if case.trains and Supports.of(load_model(case.model)).precision]


def gradients(case: ModelCase, name: PrecisionName) -> list[torch.Tensor]:
    """Of one batch of every phase, in float64 and without the loss scale."""
    device = torch.device("cpu")
    settings = {"training.batch_size": 16, **case.settings, **case.without_dropout}
    config = build_config(case.model, None, None, (), settings)
    data = load_data(config, case.data)
    torch.manual_seed(0)
    model, found = build_model(config, data, device).train(), []
    for number, phase in enumerate(model.phases(data, config.training)):
        precision = Precision(name, device)
        step = OptimizerStep(phase, number, config.training, precision, DataParallelRank(), device)
        phase.start_epoch(0, 0)
        batch = phase.plan(0, 0, 0)
        denominators = {name: value * LARGER for name, value in batch.denominators.items()}
        step.accumulate(replace(batch, denominators=denominators))
        scale = 1.0 if precision.scaler is None else precision.scaler.get_scale()
        found += [p.grad.double() / scale for p in phase.parameters() if p.grad is not None]
        step.zero_grad()
    return found


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.label)
def test_small_gradients_survive_in_fp16(case):
    """Rounding to fp16 changes a gradient by up to a fifth here, its range one by all of it.

    A fifth where the input of a ReLU is near zero and has another sign.
    """
    expected, found = gradients(case, "fp32"), gradients(case, "fp16")
    least = 1e-3 * max(float(each.norm()) for each in expected)
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm()) <= 0.25 * float(other.norm()) + least

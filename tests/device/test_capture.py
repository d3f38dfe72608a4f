"""Steps that a CUDA graph can replay, on the simulated device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from hasten.objectives.base import Batch
from hasten.objectives.prefetch import batch_inputs
from hasten.ops.transfer import layout, send
from hasten.training.capture import step as capture
from hasten.training.capture.step import StepCapture, capture_steps
from hasten.training.optimizers.device_row_adam import DeviceRowAdam
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, ModelCase
from tests.device.measure import BY_ROWS, build, read_by_rows
from tests.device.recorder import difference, recording
from tests.device.replay import SimulatedGraphs
from tests.device.simulation import simulated


def ready(stepper: OptimizerStep, epoch: int, index: int) -> Batch:
    """A batch with its inputs on the device."""
    batch = stepper.phase.plan(0, epoch, index)
    made = batch_inputs(stepper.phase, batch, batch.micro_batches(*stepper.local_micro_batch_range))
    sent = send(made, stepper.device)
    return replace(batch, inputs=sent.received(), packed=sent.buffer)


#: queries have other numbers of answers: 1 or 3
UNEVEN = {"next": (1,), "near": (-1, 1, 2)}
#: relations of a graph of one type, whose batches have other numbers of links
SYMMETRIC = {"next": (-1, 1), "near": (-2, -1, 1, 2)}
TRAINED = [
    replace(case, ring=SYMMETRIC if case.model == "hgt" else UNEVEN) if case.triples else case
    for case in CASES
    if case.trains
]
#: cases whose phases can all be captured, with further settings
CAPTURED = {
    "conve": {},
    "tucker": {"model.loss": "1-n-softmax", "model.label_smoothing": 0.1},
    "complex-n3": {"model.loss": "1-n"},
    "sasrec-ce": {},
    "sasrec-bce-post": {},
    "tisasrec-ce": {},
    "sasrec-sampled-softmax": {},
    "tisasrec-features": {},
    "bprmf": {},
    "lightgcn": {},
    "kgat": {},
    "kgat-gcn": {},
    "mmgcn": {},
    "mmgcn-frozen": {},
    "bm3": {},
    "freedom": {},
    "dragon": {},
    "complex-sampled": {},
    "complex-sampled-softmax": {},
    "rotate": {},
    "distmult": {"model.loss": "1vsall"},
    "hgt": {"model.dropout": 0.2},
}


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.label)
def test_steps_of_a_phase_that_does_not_vary_are_the_same_operations(case):
    """Also in another epoch and with another learning rate: arguments would be replayed."""
    with simulated("cuda") as device:
        *_, steppers = build(case, device)
        for stepper in steppers:
            stepper.phase.fix_shapes()
            if stepper.phase.no_capture_reason is not None:
                continue
            stepper(stepper.phase.plan(0, 0, 0), 1e-3)  # makes the moments
            found, again = {}, 0
            for epoch, index in ((0, 1), (1, 0), (1, 1), (2, 0), (2, 1)):
                batch = ready(stepper, epoch, index)
                stepper.optimizer.set_rate(1e-3 / (1 + epoch))
                with recording() as taken:
                    stepper.eager(batch)
                assert not taken.uploads
                key = layout(batch.inputs), stepper.phase.host_values(batch)
                again += key in found
                assert difference(found.setdefault(key, taken), taken) is None
            assert again


def trained(case: ModelCase, mode: str, settings: Mapping[str, Any]) -> tuple[list, list]:
    """The weights after two epochs, and the graphs of the phases."""
    with simulated("cuda") as device:
        config, _, model, steppers = build(case, device, **{"training.capture": mode, **settings})
        report = capture_steps(steppers, config.training)
        for epoch in range(2):
            for stepper in steppers:
                stepper.phase.start_epoch(0, epoch)
                for index in range(stepper.phase.steps()):
                    stepper(stepper.plan(0, epoch, index), 1e-2 / (1 + epoch))
                stepper.phase.end_epoch(0, epoch)
        found = report()
        return [p.detach().cpu() for p in model.parameters()], found


@pytest.mark.parametrize("label", BY_ROWS)
def test_captured_steps_of_row_wise_adam(label, monkeypatch):
    """The graph holds the rows that are read, their update, and the sums of the missed steps."""
    read_by_rows(monkeypatch)
    with simulated("cuda") as device:
        *_, steppers = build(next(each for each in TRAINED if each.label == label), device)
        assert isinstance(steppers[-1].optimizer, DeviceRowAdam)
    assert_captured_is_eager(label, {})


@pytest.mark.parametrize("label", CAPTURED)
def test_captured_steps_are_those_taken_one_operation_at_a_time(label):
    """With dropout and negatives: other inputs, seeds and learning rates than those recorded.

    The steps that are compared have the same shapes: "auto" pads batches as "always" does.
    """
    assert_captured_is_eager(label, CAPTURED[label])


def assert_captured_is_eager(label: str, settings: Mapping[str, Any]) -> None:
    case = next(case for case in TRAINED if case.label == label)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "CudaGraphs", SimulatedGraphs)
        patch.setattr(capture, "WARM_UP", 1)
        weights, reports = trained(case, "always", settings)
        patch.setattr(StepCapture, "__call__", lambda self, batch, _: self.stepper.eager(batch))
        expected, _ = trained(case, "always", settings)
    for each in reports:
        assert each["in_effect"], each
    for one, other in zip(weights, expected, strict=True):
        assert torch.equal(one, other)

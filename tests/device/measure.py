"""What each phase of a model does on a simulated device: an epoch's begin, steps, an evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.build import build_model, load_data, ranking_tasks
from hasten.config import RunConfig
from hasten.config_loading.build import build_config
from hasten.data.tables import AnyDataset
from hasten.evaluation.ranker import evaluate
from hasten.models.interface import Model
from hasten.objectives import step_rows
from hasten.objectives.prefetch import batch_inputs
from hasten.ops import table_rows
from hasten.ops.transfer import layout, send
from hasten.training.capture.step import refusal
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers import device_row_adam
from hasten.training.precision import Precision, PrecisionName
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, ModelCase
from tests.device.recorder import Recorder, difference, recording

#: batches in which a model of the contract suite is measured
SETTINGS = {"training.batch_size": 16}

#: one case of every model
FIRST = {case.model: case for case in reversed(CASES)}


#: cases whose last phase has row-wise Adam if their tables are large
BY_ROWS = ("sasrec-sampled-softmax", "kgat", "bprmf")


def read_by_rows(patch: pytest.MonkeyPatch) -> None:
    """Take the small tables of the cases for large ones."""
    patch.setattr(table_rows, "MANY_ELEMENTS", 0)
    patch.setattr(step_rows, "MANY_ROWS", 0)
    patch.setattr(step_rows, "MIN_TABLE_TO_READ_RATIO", 0)
    patch.setattr(device_row_adam, "MIN_TABLE_TO_READ_RATIO", 0)


def build(
    case: ModelCase, device: torch.device, precision: PrecisionName = "fp32", **settings: Any
) -> tuple[RunConfig, AnyDataset, Model, list[OptimizerStep]]:
    """A model of the contract suite on a device, with its data and the steps of its phases."""
    settings = {**SETTINGS, **case.settings, **settings} if case.trains else dict(case.settings)
    config = build_config(case.model, None, None, (), settings)
    data = load_data(config, case.data)
    torch.manual_seed(0)
    model = build_model(config, data, device).train()
    steppers = [
        OptimizerStep(
            phase, number, config.training, Precision(precision, device), DataParallelRank(), device
        )
        for number, phase in enumerate(model.phases(data, config.training))
    ]
    return config, data, model, steppers


def measure(
    case: ModelCase, device: torch.device, precision: PrecisionName = "fp32"
) -> dict[str, Recorder]:
    """The recordings of a model by their names; phases' names come first where there are several.

    step, next: the second step of an epoch, and one whose inputs have the same layout;
    end, begin: the epoch's end and the begin of the next one; evaluation: of all of validation,
    which is one batch at this size. Batches have the shapes that training gives them.
    """
    found: dict[str, Recorder] = {}
    with recording():
        config, data, model, steppers = build(case, device, precision)
        if not steppers:
            model.fit(data)
    for stepper in steppers:
        phase = stepper.phase
        prefix = f"{phase.name}." if len(steppers) > 1 else ""
        with recording():
            refusal(stepper, config.training)  # fixes the shapes of batches, as training does
            phase.start_epoch(0, 0)
            stepper(phase.plan(0, 0, 0), 1e-3)
            batches = {"step": (0, 1 % phase.steps()), "next": alike_to_second(stepper)}
        for name, (epoch, index) in batches.items():
            with recording() as found[prefix + name]:
                stepper(phase.plan(0, epoch, index), 1e-3)
        with recording() as found[f"{prefix}end"]:
            phase.end_epoch(0, 0)
        with recording() as found[f"{prefix}begin"]:
            phase.start_epoch(0, 1)
    task, _ = ranking_tasks(data, config)
    with recording() as found["evaluation"]:
        evaluate(model, task, config.evaluation.metrics, device=device)
    return found


def alike_to_second(stepper: OptimizerStep) -> tuple[int, int]:
    """Epoch and index of a later batch whose inputs have the layout of the second's, or the third.

    Not of the last batch of an epoch, which can be smaller.
    """
    phase = stepper.phase

    def layout_of(epoch: int, index: int) -> Any:
        batch = phase.plan(0, epoch, index)
        sent = send(
            batch_inputs(phase, batch, batch.micro_batches(*stepper.local_micro_batch_range)),
            stepper.device,
        )
        return layout(sent.tree), phase.host_values(batch)

    third, second = (0, 2 % phase.steps()), (0, 1 % phase.steps())
    if phase.no_capture_reason is not None:
        return third
    wanted, epochs = layout_of(*second), range(8)
    later = ((each, index) for each in epochs for index in range(phase.steps() - 1))
    found = (each for each in later if each > second and layout_of(*each) == wanted)
    return next(found, third)


def differing(found: dict[str, Recorder]) -> dict[str, str]:
    """The phases (prefixes of names) whose two steps are not the same operations, and how.

    Those steps cannot be captured in a graph and replayed.
    """
    prefixes = [name.removesuffix("step") for name in found if name.endswith("step")]
    pairs = {each: (found[f"{each}step"], found[f"{each}next"]) for each in prefixes}
    return {each: how for each, pair in pairs.items() if (how := difference(*pair)) is not None}

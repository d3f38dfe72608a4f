"""What each phase of a model does on a simulated device: an epoch's begin, steps, an evaluation."""

from __future__ import annotations

import torch

from hasten.build import build_model, load_data, ranking_tasks
from hasten.config_loading.build import build_config
from hasten.evaluation.ranker import evaluate
from hasten.training.precision import Precision
from hasten.training.step import DataShard, OptimizerStep
from tests.contract.cases import ModelCase
from tests.device.recorder import Recorder, recording

#: batches in which a model of the contract suite is measured
SETTINGS = {"training.batch_size": 16}


def measure(case: ModelCase, device: torch.device) -> dict[str, Recorder]:
    """The recordings of a model by their names; phases' names come first where there are several.

    begin: of the second epoch; step, next: its first two; end: of the epoch;
    evaluation: all of validation, which is one batch at this size.
    """
    settings = {**SETTINGS, **case.settings} if case.trains else case.settings
    config = build_config(case.model, None, None, (), settings)
    data = load_data(config, case.data)
    torch.manual_seed(0)
    found: dict[str, Recorder] = {}
    with recording():
        model = build_model(config, data, device).train()
        phases = model.phases(data, config.training)
        if not phases:
            model.fit(data)
        precision = Precision("fp32", device)
        steppers = [
            OptimizerStep(phase, number, config.training, precision, DataShard(), device)
            for number, phase in enumerate(phases)
        ]
    for phase, stepper in zip(phases, steppers, strict=True):
        prefix = f"{phase.name}." if len(phases) > 1 else ""
        with recording():
            phase.start_epoch(0, 0)
            stepper(phase.plan(0, 0, 0), 1e-3)
        with recording() as found[f"{prefix}begin"]:
            phase.start_epoch(0, 1)
        for index, name in enumerate(("step", "next")):
            with recording() as found[prefix + name]:
                stepper(phase.plan(0, 1, index % phase.steps()), 1e-3)
        with recording() as found[f"{prefix}end"]:
            phase.end_epoch(0, 1)
    task, _ = ranking_tasks(data, config)
    with recording() as found["evaluation"]:
        evaluate(model, task, config.evaluation.metrics, device=device)
    return found

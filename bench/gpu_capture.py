"""Training steps in CUDA graphs beside the same steps taken one kernel at a time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from bench.gpu_training import Synthetic
from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.training.capture.step import capture_steps
from hasten.training.precision import Precision
from hasten.training.step import DataShard, OptimizerStep

#: models whose steps can be captured, with what they need to be
MODELS: dict[str, dict[str, Any]] = {
    "sasrec": {"model.dropout": 0.2},
    "tisasrec": {"model.dropout": 0.2, "training.precision": "bf16"},
    "bprmf": {},
    "distmult": {"model.loss": "sampled"},
    "conve": {"model.loss": "1vsall"},
}
STEPS = 60
#: largest difference of weights to those of the usual steps, as a share of their norm
_ROUNDING = 1e-5


def captured_steps(device: torch.device) -> dict[str, Any]:
    """Equal weights with deterministic kernels; milliseconds a step with the usual ones."""
    if device.type != "cuda":
        return {"passed": True, "skipped": "CUDA graphs need a CUDA device"}
    rows = {model: compared(model, device) for model in MODELS}
    return {"passed": all(row["passed"] for row in rows.values()), "models": rows}


def compared(model: str, device: torch.device) -> dict[str, Any]:
    """One model: whether its weights are equal, and what capturing gains."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        usual, captured = (taken(model, device, captured=way)[0] for way in (False, True))
    finally:
        torch.use_deterministic_algorithms(mode=False)
    times = [taken(model, device, captured=way)[1] for way in (False, True)]
    difference = float((captured - usual).norm() / usual.norm())
    return {
        "passed": difference <= _ROUNDING,
        "equal": torch.equal(usual, captured),
        "difference": difference,
        "eager_ms": times[0],
        "captured_ms": times[1],
    }


def taken(model: str, device: torch.device, *, captured: bool) -> tuple[torch.Tensor, float]:
    """All weights after the steps, and milliseconds a step of the second half."""
    triples = model in ("distmult", "conve")
    settings = {**MODELS[model], "training.batch_size": 128, "training.capture": "always"}
    config = build_config(model, None, None, (), settings)
    data = load_data(config, facts() if triples else Synthetic(4000, 2000, 100).columns())
    torch.manual_seed(0)
    built = build_model(config, data, device).train()
    (phase,) = built.phases(data, config.training)
    precision = Precision(config.training.precision, device)  # type: ignore[arg-type]
    step = OptimizerStep(phase, 0, config.training, precision, DataShard(), device)
    report = capture_steps([step], config.training)
    if not captured:
        step.capture = None  # the same padding
    begin = 0.0
    for number in range(STEPS):
        if number == STEPS // 2:
            torch.cuda.synchronize(device)
            begin = time.perf_counter()
        epoch, index = divmod(number, max(1, phase.steps() - 1))
        step(step.plan(0, epoch, index), 1e-3)
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    if captured and not report()[0]["in_effect"]:
        raise RuntimeError(f"{model}: no step was captured: {report()[0]['note']}")
    weights = torch.cat([p.detach().flatten().double() for p in built.parameters()])
    return weights, seconds / (STEPS - STEPS // 2) * 1e3


def facts(entities: int = 3000, relations: int = 20, count: int = 40_000) -> dict[str, Any]:
    """Random triples."""
    generator = np.random.default_rng(0)
    ends = generator.integers(0, entities, (2, count))
    return {"head": ends[0], "relation": generator.integers(0, relations, count), "tail": ends[1]}

"""Training steps in CUDA graphs beside the same steps taken one kernel at a time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from bench.gpu_data import facts, made_book, made_features
from bench.gpu_steps import ENTITIES, FIRST
from bench.gpu_training import Synthetic
from bench.kgat_side import dataset_of
from hasten.build import build_model, load_data
from hasten.config import RunConfig
from hasten.config_loading.build import build_config
from hasten.ops import table_rows
from hasten.training.capture.step import capture_steps
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import graph

#: models whose steps can be captured, with what they need to be, by name of the row
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "sasrec": ("sasrec", {"model.dropout": 0.2}),
    "sasrec, sampled-softmax": ("sasrec", {"model.loss": "sampled-softmax"}),
    "tisasrec, bf16": ("tisasrec", {"model.dropout": 0.2, "training.precision": "bf16"}),
    "bprmf": ("bprmf", {}),
    "lightgcn": ("lightgcn", {}),
    "kgat": ("kgat", {"model.layers": [64, 32]}),
    "freedom": ("freedom", {}),
    "distmult": ("distmult", {"model.loss": "sampled"}),
    "complex, 1vsall": ("complex", {"model.loss": "1vsall", "model.dropout": 0.5}),
    "complex, 1vsall, small": (
        "complex",
        {"model.loss": "1vsall", "model.width": 16, "training.batch_size": 32},
    ),
    "complex, softmax, N3": (
        "complex",
        {"model.loss": "1-n-softmax", "model.n3": 0.01, "model.relation_weight": 0.5},
    ),
    "complex, sampled-softmax": (
        "complex",
        {"model.loss": "sampled-softmax", "model.negatives": 512, "model.n3": 0.01},
    ),
    "conve": ("conve", {"model.loss": "1-n"}),
    "conve, softmax": ("conve", {"model.loss": "1-n-softmax"}),
    # of a large batch: the last layer of a small one needs few of the graph's messages
    "hgt": (
        "hgt",
        {"model.dropout": 0.2, "model.contrastive_batch": 64, "training.batch_size": 1024},
    ),
    "kgat, row-wise Adam": ("kgat", {"model.kg_batch_size": 128}),
}
STEPS = 60
#: largest difference of weights to those of the usual steps, as a share of their norm
_ROUNDING = 1e-5


def captured_steps(device: torch.device) -> dict[str, Any]:
    """Equal weights with deterministic kernels; milliseconds a step with the usual ones."""
    if device.type != "cuda":
        return {"passed": True, "skipped": "CUDA graphs need a CUDA device"}
    rows, large = {}, table_rows.MANY_ELEMENTS
    for name, chosen in MODELS.items():
        table_rows.MANY_ELEMENTS = 0 if name.endswith("row-wise Adam") else large
        try:
            rows[name] = compared(*chosen, device)
        finally:
            table_rows.MANY_ELEMENTS = large
    return {"passed": all(row["passed"] for row in rows.values()), "models": rows}


def compared(model: str, settings: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """One model: whether its weights are equal, and what capturing gains."""
    chosen = {"training.batch_size": 128, **settings, "training.capture": "always"}
    config = build_config(model, None, None, (), chosen)
    data = data_of(model, config)
    torch.use_deterministic_algorithms(mode=True)
    try:
        usual, captured, again = (
            taken(config, data, device, captured=way)[0] for way in (False, True, True)
        )
    finally:
        torch.use_deterministic_algorithms(mode=False)
    times = [taken(config, data, device, captured=way)[1] for way in (False, True)]
    difference = float((captured - usual).norm() / usual.norm())
    return {
        "passed": difference <= _ROUNDING and torch.equal(captured, again),
        "repeated": torch.equal(captured, again),
        "equal": torch.equal(usual, captured),
        "difference": difference,
        "eager_ms": times[0],
        "captured_ms": times[1],
    }


def taken(
    config: RunConfig, data: Any, device: torch.device, *, captured: bool
) -> tuple[torch.Tensor, float]:
    """All weights after steps of every phase, and milliseconds of the second half of them."""
    torch.manual_seed(0)
    built = build_model(config, data, device).train()
    precision = Precision(config.training.precision, device)  # type: ignore[arg-type]
    steps = [
        OptimizerStep(phase, number, config.training, precision, DataParallelRank(), device)
        for number, phase in enumerate(built.phases(data, config.training))
    ]
    report = capture_steps(steps, config.training)
    begin = 0.0
    for number in range(STEPS):
        if number == STEPS // 2:
            torch.cuda.synchronize(device)
            begin = time.perf_counter()
        for step in steps:
            if not captured:
                step.replay = None  # the same padding
            epoch, index = divmod(number, max(1, step.phase.steps() - 1))
            step(step.plan(0, epoch, index), 1e-3)
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - begin
    for each in report() if captured else ():
        if not each["in_effect"]:
            name = config.model.name
            raise RuntimeError(f"{name}: no {each['phase']} was captured: {each['note']}")
    weights = torch.cat([p.detach().flatten().double() for p in built.parameters()])
    return weights, seconds / (STEPS - STEPS // 2) * 1e3


def data_of(model: str, config: RunConfig) -> Any:
    """Random data of the kind that the model reads."""
    if model in ("kgat", "freedom"):
        book = made_book(0.2)
        return replace(dataset_of(book), modalities=made_features(book.items))
    if model == "hgt":
        return load_data(config, graph(ENTITIES, FIRST["hgt"].ring))
    triples = model in ("distmult", "complex", "conve")
    return load_data(config, facts() if triples else Synthetic(4000, 2000, 100).columns())

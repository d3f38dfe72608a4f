"""Training steps of hasten beside those of the plain PyTorch models of this folder, at equal sizes.

Both sides train in fp32, with TF32 products on CUDA, by fused Adam. hasten's step includes making
its batch, prefetched, and is captured in a CUDA graph where that is faster; the batches of the
plain side are made beforehand. Steps of both alternate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from bench.gpu_plain_sides import PLAIN, SETTINGS, problem
from bench.gpu_steps import milliseconds
from hasten.build import build_model
from hasten.training.capture.step import capture_steps
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

#: steps in which kernels are compiled; steps before those that are timed, enough for graphs of
#: several layouts; timed steps
COMPILING, WARM_UP, TIMED = 3, 60, 20
#: seconds that each of both may take
LIMIT = 2.0


def beside_plain(
    device: torch.device, models: Sequence[str] = tuple(SETTINGS), quick: bool = False
) -> dict[str, Any]:
    """Milliseconds a step of both sides, for each phase of each model. quick: small data."""
    rows: dict[str, dict[str, Any]] = {}
    for model in models:
        try:
            rows |= compared(model, device, quick)
        except Exception as error:  # noqa: BLE001 - recorded: one must not hide the others
            rows[model] = {"error": f"{type(error).__name__}: {error}"}
    failed = {name: each["error"] for name, each in rows.items() if "error" in each}
    problem = {"error": str(failed)} if failed else {}
    return {"passed": not failed, "phases": rows, **problem}


def compared(model: str, device: torch.device, quick: bool) -> dict[str, dict[str, Any]]:
    """The phases of one model."""
    config, data = problem(model, quick)
    torch.manual_seed(0)
    built = build_model(config, data, device).train()
    steppers = [
        OptimizerStep(
            phase, number, config.training, Precision("fp32", device), DataParallelRank(), device
        )
        for number, phase in enumerate(built.phases(data, config.training))
    ]
    report = capture_steps(steppers, config.training)
    plain = PLAIN[model](data, config.training.batch_size, device)
    found = {}
    for step in steppers:
        step.phase.start_epoch(0, 0)
        with tf32():
            times = alternated(ours(step), plain[step.phase.name].stepper(), device)
        found[f"{model}, {step.phase.name}"] = times
    for step, captured in zip(steppers, report(), strict=True):
        found[f"{model}, {step.phase.name}"]["captured"] = captured["in_effect"]
    return found


def ours(step: OptimizerStep) -> Callable[[int], None]:
    """What takes the step of a number, with the batch that follows."""
    usual = max(1, step.phase.steps() - 1)  # the last batch of an epoch can be smaller

    def take(number: int) -> None:
        epoch, index = divmod(number, usual)
        step(step.plan(0, epoch, index), 1e-3)

    return take


def alternated(
    one: Callable[[int], None], other: Callable[[int], None], device: torch.device
) -> dict[str, Any]:
    """Medians of both in milliseconds, and how often the first goes into the second."""
    times: list[list[float]] = [[], []]
    number = 0
    for count, kept, limit in (
        (COMPILING, False, math.inf), (WARM_UP, False, LIMIT), (TIMED, True, LIMIT)
    ):  # fmt: skip
        end = time.perf_counter() + limit
        for _ in range(count):
            for take, seen in zip((one, other), times, strict=True):
                took = milliseconds(take, number, device.type == "cuda")
                if kept:
                    seen.append(took)
            number += 1
            if time.perf_counter() > end:
                break
    mine, theirs = map(median, times)
    return {"ms": mine, "plain_ms": theirs, "ratio": theirs / mine}


@contextmanager
def tf32() -> Iterator[None]:
    """Products in TF32, as hasten's are by default on CUDA."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

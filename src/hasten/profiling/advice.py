"""Options that shorten the slowest part of training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from hasten.config import RunConfig
from hasten.models.supports import Supports
from hasten.training.precision import PrecisionName, resolve_precision, slow_precision

#: options that are named, at most
_MAX_SUGGESTIONS = 2
#: share of an epoch that evaluation may take
_EVALUATION_SHARE = 0.1


@dataclass(frozen=True)
class Advice:
    """An option to change, and why."""

    option: str
    reason: str


@dataclass(frozen=True)
class Circumstances:
    """What the advice depends on. device: its type; cpus: the usable ones.

    evaluation_seconds: of one evaluation; train_seconds: of an epoch without it.
    """

    config: RunConfig
    device: str
    processes: int
    backend: str | None
    precision: PrecisionName
    threads: int
    cpus: int
    supports: Supports
    train_seconds: float
    evaluation_seconds: float


def advise(bottleneck: str, now: Circumstances) -> list[Advice]:
    """One or two options for the part of an epoch that takes longest; the first helps most."""
    rules = {
        "data": _for_data,
        "communication": _for_communication,
        "optimizer": _for_optimizer,
        "evaluation": _for_evaluation,
    }
    return list(islice(rules.get(bottleneck, _for_computation)(now), _MAX_SUGGESTIONS))


def _for_computation(now: Circumstances) -> Iterator[Advice]:
    """For forward and backward."""
    options, device = now.config.training, torch.device(now.device)
    if slow_precision(now.precision, device):
        yield Advice("--precision auto", f"this processor only emulates {now.precision}")
    yield from _for_hardware(now)
    faster = resolve_precision("auto", device)
    if now.precision == "fp32" and faster != "fp32" and now.supports.precision:
        yield Advice("--precision auto", f"this device multiplies {faster} faster than fp32")
    if options.recompute:
        yield Advice(
            "--no-recompute", "the backward pass computes activations again; needs more memory"
        )
    if options.accumulate > 1:
        yield Advice(
            f"--accumulate {options.accumulate // 2}",
            "fewer and larger matrix products; needs more memory",
        )
    if options.compile == "off" and now.supports.compile:
        yield Advice("--compile auto", "compiles the model, and keeps it if it is faster")
    yield _larger_batch(now, "larger matrix products use the device better")


def _for_hardware(now: Circumstances) -> Iterator[Advice]:
    """Devices and cores that are not used."""
    if now.device != "cpu":
        return
    for name, there in (
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
    ):
        if there:
            yield Advice(f"--device {name}", "this machine has a GPU")
    if now.processes == 1 and now.threads < now.cpus:
        yield Advice(
            f"--threads {now.cpus}", f"{now.threads} of {now.cpus} usable processors are in use"
        )


def _for_data(now: Circumstances) -> Iterator[Advice]:
    yield _larger_batch(now, "each step has a cost that does not depend on its size")
    if now.processes == 1 and now.cpus > now.threads:
        yield Advice("--devices 2", "each process prepares its share of a batch")


def _for_communication(now: Circumstances) -> Iterator[Advice]:
    if now.device == "cuda" and now.backend == "gloo":
        yield Advice("--backend nccl", "gradients are summed on the GPUs")
    yield _larger_batch(now, "fewer sums of gradients in an epoch")
    yield Advice("--devices 1", "a small model trains faster without communication")


def _for_optimizer(now: Circumstances) -> Iterator[Advice]:
    yield _larger_batch(now, "fewer updates in an epoch")


def _for_evaluation(now: Circumstances) -> Iterator[Advice]:
    enough_epochs = now.evaluation_seconds / max(now.train_seconds * _EVALUATION_SHARE, 1e-9)
    every = max(now.config.evaluation.every + 1, min(math.ceil(enough_epochs), 100))
    yield Advice(
        f"--eval-every {every}",
        f"fewer evaluations; {_EVALUATION_SHARE:.0%} of the time of an epoch is enough for most",
    )
    yield from _for_hardware(now)


def _larger_batch(now: Circumstances, why: str) -> Advice:
    size = 2 * now.config.training.batch_size
    return Advice(f"--batch-size {size}", f"{why}; changes the result: tune --lr with it")

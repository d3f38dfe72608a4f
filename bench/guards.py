"""What the guards and monitors of a training step cost, and a module that is pinned to fp32.

    python -m bench.guards
    python -m bench.guards --models sasrec --blocks 20 --provisional

Guards: an iteration of the training loop as ``hasten train`` runs it, against planning, forward,
backward and update of the same batch and nothing else: no gradient norm unless gradients are
clipped, no finite checks, no recorded losses, no progress, no signals, no retreat. Pins: a step
without guards in bf16, with SASRec's last LayerNorm pinned to fp32, against none pinned.

Both sides alternate in one process, on one batch, after a step that is not timed: A B B A. Ratios
are taken inside of these blocks, of CPU seconds or, with ``--wall``, of elapsed seconds. Ends with
1 if guards cost more than 2 %, or a pin more than 1 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from bench.data import plain_file
from bench.machine import load
from bench.precision_memory import MODELS
from bench.results import RESULTS, circumstances, page, with_interval, write_result
from bench.statistics import spread
from hasten import api, training_run
from hasten.objectives.base import Batch
from hasten.training.mixed_precision.pins import PinnedModules
from hasten.training.step import OptimizerStep
from hasten.training.trainer import Trainer

#: the largest cost, as a share of a step
MAX_OVERHEAD = {"guards": 0.02, "pin": 0.01}
PINNED = "final_norm"


class MeasuredError(Exception):
    """Ends the run: all phases were measured."""


def plain_step(stepper: OptimizerStep, batch: Batch, lr: float) -> None:
    """A step without guards and monitors."""
    optimizer = stepper.optimizer
    stepper.zero_grad()
    stepper.accumulate(batch)
    if stepper.options.clip_norm is not None:
        stepper.clip(optimizer.gradient_norm())
    optimizer.set_rate(lr)
    optimizer.grad_scale = optimizer.found_inf = None
    optimizer.step()
    stepper.phase.end_step(torch.ones((), dtype=torch.bool))


class Alternating:
    """Puts timed plain steps between the iterations of a phase's training loop.

    Iterations come in pairs of one batch; the plain steps run where the loop asks for a batch.
    """

    def __init__(
        self, model: nn.Module, stepper: OptimizerStep, blocks: int, clock: Callable[[], float]
    ) -> None:
        self.model, self.stepper, self.clock = model, stepper, clock
        self.plan_real, self.real_steps = stepper.phase.plan, stepper.phase.steps()
        #: seconds of both sides, two for each block
        self.first: list[float] = []
        self.second: list[float] = []
        self.since: float | None = None
        # one iteration more: it ends the last one that is timed
        for name, value in {"plan": self.plan, "steps": lambda: 2 * blocks + 1}.items():
            setattr(stepper.phase, name, value)

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        """The batch of an iteration of the loop, which begins now."""
        if self.since is not None:
            self.first.append(self.clock() - self.since)
        planned = partial(self.plan_real, seed, epoch, index // 2 % self.real_steps)
        if index % 2:
            self.second += [self.timed(planned), self.timed(planned)]
        else:
            self.timed(planned)
        self.since = self.clock()
        return planned()

    def timed(self, planned: Callable[[], Batch]) -> float:
        """Seconds of a plain step."""
        begin = self.clock()
        plain_step(self.stepper, planned(), self.stepper.options.lr)
        return self.clock() - begin

    def ratios(self) -> list[float]:
        """Of the first side to the second, for each block."""
        first, second = (
            [a + b for a, b in zip(side[::2], side[1::2], strict=False)]
            for side in (self.first, self.second)
        )
        return [a / b for a, b in zip(first, second, strict=True)]


class AlternatingPin(Alternating):
    """Compares plain steps with a pinned module and without; the loop's own are not timed."""

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        module = self.model.get_submodule(PINNED)
        pinned = module.__dict__.pop("forward", None)  # as its class defines it
        if pinned is None:
            PinnedModules(self.model).pin({PINNED: {}})
            pinned = module.__dict__.pop("forward")
        planned = partial(self.plan_real, seed, epoch, index // 2 % self.real_steps)
        self.timed(planned)
        for side in (self.first, self.second, self.second, self.first):
            if side is self.first:
                module.forward = pinned
            side.append(self.timed(planned))
            module.__dict__.pop("forward", None)
        module.forward = pinned
        return planned()


def measure_model(
    model: str, kind: type[Alternating], options: argparse.Namespace, settings: dict[str, Any]
) -> dict[str, Alternating]:
    """Train on the reference data of a model until every phase has its blocks; by phase."""
    found: dict[str, Alternating] = {}
    clock = time.perf_counter if options.wall else time.process_time

    class Measured(Trainer):
        def __init__(self, built: nn.Module, *arguments: Any, **named: Any) -> None:
            super().__init__(built, *arguments, **named)
            for stepper in self.steppers:
                found[stepper.phase.name] = kind(built, stepper, options.blocks, clock)

        def finish_epoch(self) -> bool:
            raise MeasuredError

    data, recipe = MODELS[model]
    given = {"recipe": f"{data}/{recipe}", "device": "cpu", "threads": options.threads}
    with (
        tempfile.TemporaryDirectory() as scratch,
        mock.patch.object(training_run, "Trainer", Measured),
        suppress(MeasuredError),
    ):
        out = Path(scratch) / "run"
        api.train(model, plain_file(data), settings=given | settings, out=str(out), quiet=True)
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    before = load()
    rows: list[dict[str, Any]] = []
    work: list[tuple[str, str, type[Alternating], dict[str, Any]]] = [
        *(("guards", model, Alternating, {}) for model in options.models),
        ("pin", "sasrec", AlternatingPin, {"training.precision": "bf16"}),
    ]
    for what, model, kind, settings in work:
        for phase, turns in measure_model(model, kind, options, settings).items():
            own = {"seconds": spread(turns.second), "ratio": spread(turns.ratios())}
            rows.append({"what": what, "model": model, "phase": phase, **own})
            print(f"{what}, {model}, {phase}: {own['ratio']['median']:.4f}", file=sys.stderr)
    return {
        "name": "guards",
        **circumstances(before, options.provisional),
        "settings": {"threads": options.threads, "blocks": options.blocks, "wall": options.wall},
        "rows": rows,
        "repeat": "python -m bench.guards " + " ".join(sys.argv[1:]),
    }


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    chosen = result["settings"]
    clock = "elapsed" if chosen["wall"] else "CPU"
    about = f"CPU, {chosen['threads']} thread(s), {chosen['blocks']} blocks, {clock} seconds."
    lines = ["| what | model | phase | ms a plain step | cost | at most |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for row in result["rows"]:
        ratio, most = row["ratio"], MAX_OVERHEAD[row["what"]]
        low, middle, high = (f"{ratio[key] - 1:.2%}" for key in ("low", "median", "high"))
        lines.append(
            f"| {row['what']} | {row['model']} | {row['phase']} "
            f"| {with_interval(row['seconds'], 1e3)} | {middle} ({low} to {high}) | {most:.0%} |"
        )
    return page(result, about, lines)


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=tuple(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=20, help="A B B A, for each phase")
    parser.add_argument("--wall", action="store_true", help="elapsed instead of CPU seconds")
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    result = measure(options)
    text = markdown(result)
    path = write_result(result, text, results)
    print(text)
    print(path)
    return int(
        any(row["ratio"]["median"] - 1 > MAX_OVERHEAD[row["what"]] for row in result["rows"])
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""The steps of a phase as CUDA graphs: one launch instead of one for every kernel.

A graph holds a whole step with the update of the optimizer, for batches whose inputs have one
layout (:func:`hasten.ops.transfer.layout`). The first steps of a layout are taken as usual; then a
step is recorded. From then on a step copies its packed inputs into the buffer that the graph reads,
seeds the generator of dropout and replays the graph. Learning rate, moments and counts are on the
device. The kernels are those of the usual step in the same order, so results are equal.

A last batch of another size is taken as usual. With ``training.capture=auto`` a layout keeps its
graph only if replaying it was measured to be faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.errors import ConfigurationError, first_line
from hasten.objectives.base import Batch
from hasten.ops.transfer import layout
from hasten.training.capture.graph import CudaGraphs
from hasten.training.step import OptimizerStep

#: layouts of a phase: each graph takes a second to record
MAX_LAYOUTS = 8
#: steps of a layout before those that are timed, and timed steps of each kind
WARM_UP, TIMED = 3, 3
#: of the time of a step; less is within the noise of the measurement
_MIN_GAIN = 0.03

Losses = dict[str, Tensor]


@dataclass
class _Layout:
    """Batches of one layout. buffer: that the graph reads; names, losses: its results."""

    steps: int = 0
    refused: bool = False
    replay: Callable[[], None] | None = None
    buffer: Tensor | None = None
    names: tuple[str, ...] = ()
    losses: Tensor | None = None
    #: milliseconds of the timed steps
    eager: list[float] = field(default_factory=list)
    captured: list[float] = field(default_factory=list)


class StepCapture:
    """Takes the steps of a phase. ``auto``: graphs must be measured to be faster."""

    def __init__(self, stepper: OptimizerStep, mode: Literal["auto", "always"]) -> None:
        self.stepper, self.mode = stepper, mode
        self.graphs = CudaGraphs(stepper.device)
        self.layouts: dict[Any, _Layout] = {}
        self.precision = stepper.precision
        self.note = ""
        #: examples of every batch but the last one of an epoch
        self.size = -1

    def __call__(self, batch: Batch, control_flags: Sequence[float] = ()) -> Losses:
        held = self._layout_of(batch)
        if held is None:
            return self.stepper.eager(batch, control_flags)
        held.steps += 1
        timed = self.mode == "auto"
        if held.replay is None:
            usual = partial(self.graphs.warm_up, partial(self.stepper.eager, batch, control_flags))
            if held.steps <= WARM_UP:
                result = usual()
            elif timed and len(held.eager) < TIMED:
                result = self._timed(usual, held.eager)
            elif self._record(held, batch):
                return self._replay(held, batch)
            else:
                return self.stepper.eager(batch, control_flags)
            if self.stepper.out_of_memory is not None:
                self.stop("memory ran out")
            return result
        if not timed or len(held.captured) == TIMED:
            return self._replay(held, batch)
        result = self._timed(lambda: self._replay(held, batch), held.captured)
        if len(held.captured) == TIMED and not _pays(held):
            held.refused, held.replay, held.losses = True, None, None
        return result

    def stop(self, note: str) -> None:
        """Drop the graphs and take all further steps as usual."""
        self.note = note
        self.layouts.clear()

    def to_json(self) -> dict[str, Any]:
        """For ``effective`` in ``metrics.json``; times are those of the layout with most steps."""
        most = max(self.layouts.values(), key=lambda each: each.steps, default=_Layout())
        graphs = sum(each.replay is not None for each in self.layouts.values())
        note = self.note
        if not graphs and not note:
            refused = any(each.refused for each in self.layouts.values())
            note = "no faster" if refused else "too few steps"
        return {
            "phase": self.stepper.phase.name,
            "in_effect": graphs > 0,
            "graphs": graphs,
            "eager_ms": min(most.eager, default=None),
            "captured_ms": min(most.captured, default=None),
            "note": note,
        }

    def _layout_of(self, batch: Batch) -> _Layout | None:
        """The layout of a batch; None if its step is taken as usual."""
        stepper = self.stepper
        if stepper.precision is not self.precision:  # it was lowered, or a module pinned to fp32
            self.layouts.clear()
            self.precision = stepper.precision
        steps = stepper.phase.steps()
        if batch.index < steps - 1 or steps == 1:
            self.size = len(batch.ids)
        alike = len(batch.ids) == self.size and stepper.micro_batch_count == 1
        if self.note or not alike or batch.packed is None:
            return None
        key = layout(batch.inputs), stepper.phase.host_values(batch)
        held = self.layouts.get(key)
        if held is None and len(self.layouts) < MAX_LAYOUTS:
            held = self.layouts[key] = _Layout()
        return None if held is None or held.refused else held

    def _record(self, held: _Layout, batch: Batch) -> bool:
        """Record the step of a batch, which becomes that of the buffer; False if it failed."""
        stepper = self.stepper
        self._seed(batch)
        stepper.zero_grad()
        before, stepper.skips_when_out_of_memory = stepper.skips_when_out_of_memory, False

        def run() -> tuple[tuple[str, ...], Tensor]:
            losses = stepper.eager(batch)
            return tuple(losses), torch.stack(list(losses.values()))

        try:
            held.replay, (held.names, held.losses) = self.graphs.record(run)
        except Exception as error:
            told = f"{type(error).__name__}: {first_line(error)}"
            if self.mode == "always":
                raise ConfigurationError(
                    f"training.capture=always failed in phase {stepper.phase.name}: {told}; use "
                    "training.capture=auto, which goes on without graphs"
                ) from error
            self.stop(f"recording failed: {told}")
            return False
        finally:
            stepper.skips_when_out_of_memory = before
            stepper.zero_grad()
        held.buffer = batch.packed
        return True

    def _replay(self, held: _Layout, batch: Batch) -> Losses:
        assert held.buffer is not None
        assert batch.packed is not None
        assert held.losses is not None
        assert held.replay is not None
        if batch.packed is not held.buffer:
            held.buffer.copy_(batch.packed, non_blocking=True)
        self._seed(batch)
        held.replay()
        # the next replay overwrites the losses
        return dict(zip(held.names, held.losses.clone().unbind(), strict=True))

    def _seed(self, batch: Batch) -> None:
        """Seed dropout as the step does: a graph reads the seed when it is replayed."""
        (part,) = self.stepper.local_micro_batch_range[0]
        self.stepper.seed(batch, part)

    def _timed(self, take: Callable[[], Losses], times: list[float]) -> Losses:
        self.graphs.synchronize()
        begin = time.perf_counter()
        result = take()
        self.graphs.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
        return result


def _pays(held: _Layout) -> bool:
    return min(held.captured) < (1 - _MIN_GAIN) * min(held.eager)


def refusal(stepper: OptimizerStep, options: TrainingOptions) -> str | None:
    """Why the steps of a phase are not captured; None if they can be, with shapes that repeat."""
    if stepper.device.type != "cuda":
        return f"CUDA graphs need a CUDA device, not {stepper.device.type}"
    for reason, holds in {
        "several processes sum their gradients": stepper.all_reduce is not None,
        "training.accumulate is more than 1": stepper.micro_batch_count > 1,
        "training.compile is on": options.compile != "off",
        "with training.deterministic, only training.capture=always uses graphs": (
            options.deterministic and options.capture == "auto"
        ),
        "fp16 scales the loss": stepper.precision.scaler is not None,
    }.items():
        if holds:
            return reason
    stepper.phase.fix_shapes()
    if options.recompute:  # with the shapes, and so the numbers, of a run without it
        return "training.recompute reads the state of the generator"
    return stepper.phase.no_capture_reason


def capture_steps(
    steppers: Sequence[OptimizerStep], options: TrainingOptions
) -> Callable[[], list[dict[str, Any]]]:
    """Capture the steps of all phases that can be; returns what reports on each phase.

    Raises:
        ConfigurationError: ``training.capture=always``, and a phase cannot be captured.
    """
    mode, refused = options.capture, {}
    for stepper in steppers:
        why = "training.capture=never" if mode == "never" else refusal(stepper, options)
        if mode == "never" or why is not None:
            refused[stepper.phase_index] = why
        else:
            stepper.replay = StepCapture(stepper, mode)
        if mode == "always" and why is not None:
            raise ConfigurationError(
                f"training.capture=always: phase {stepper.phase.name} cannot be captured: {why}; "
                "use training.capture=auto"
            )

    def report() -> list[dict[str, Any]]:
        return [
            stepper.replay.to_json()
            if isinstance(stepper.replay, StepCapture)
            else {
                "phase": stepper.phase.name,
                "in_effect": False,
                "note": refused[stepper.phase_index],
            }
            for stepper in steppers
        ]

    return report

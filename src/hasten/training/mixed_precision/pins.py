"""Pin modules to fp32: find those whose result in a lower precision is not finite or deviates."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hasten.distributed.processes import Processes
from hasten.errors import OutOfMemoryError, first_line, is_out_of_memory
from hasten.objectives.base import Batch
from hasten.training.memory.device import release_memory
from hasten.training.mixed_precision.recording import Recording, Sample, deviation
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

#: the largest relative deviation (2-norm) of outputs and of gradients that is accepted
OUTPUT_TOLERANCE, GRADIENT_TOLERANCE = 0.2, 0.5
#: batches of each phase that are compared, and the most modules that are pinned
_BATCHES, _MAX_PINS = 2, 8
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Fault:
    """The first result of a step that does not hold in a lower precision.

    module: its name; "": code of the phase outside of all modules. deviation: relative, infinite
    if the result is not finite.
    """

    module: str
    what: str
    deviation: float

    def text(self) -> str:
        """What was found, for a message."""
        whose = f"the {self.what} of {self.module}" if self.module else f"the {self.what}"
        if math.isinf(self.deviation):
            return f"{whose} is not finite, and in fp32 it is"
        return f"{whose} deviates by {self.deviation:.1%} from fp32"

    def to_json(self) -> dict[str, Any]:
        """The entry of the run's record."""
        size = None if math.isinf(self.deviation) else self.deviation
        return {"precision": "fp32", "reason": self.text(), "deviation": size}


def first_fault(
    full: Recording, low: Recording, outputs: float = _LARGEST, gradients: float = _LARGEST
) -> Fault | None:
    """The first module that goes wrong although what enters it does not; inner before outer.

    outputs, gradients: tolerances; left out, only results that are not finite count.
    """
    for a, b in zip(full.finished, low.finished, strict=False):
        difference = deviation(a.leaving, b.leaving)
        if difference > outputs >= deviation(a.entering, b.entering):
            return Fault(a.name, "output", difference)
    if (difference := deviation(full.losses, low.losses)) > outputs:
        return Fault("", "loss", difference)
    # the gradients of a module can be almost zero: they count by their part in the whole step
    whole = math.sqrt(
        sum(float(s.values.square().sum()) for s in full.gradients.values() if s.finite)
    )
    for a, b in zip(reversed(full.begun), reversed(low.begun), strict=False):
        names = [name for name in full.gradients if name.rpartition(".")[0] == a.name]
        expected: dict[Any, Sample] = {name: full.gradients[name] for name in names}
        difference = deviation(expected, low.gradients, whole)
        if math.isinf(deviation(a.entering_gradients, b.entering_gradients)):
            difference = math.inf
        if difference > gradients >= deviation(a.leaving_gradients, b.leaving_gradients):
            return Fault(a.name, "gradient", difference)
    difference = deviation(full.gradients, low.gradients)
    return Fault("", "gradient", difference) if difference > gradients else None


def compare(
    stepper: OptimizerStep, batch: Batch, model: nn.Module, micro_batches: int, *tolerances: float
) -> Fault | None:
    """The first fault of a batch, in this many micro-batches, or more where memory runs out.

    tolerances: of :func:`first_fault`. Raises OutOfMemoryError if more would not need less memory.
    """
    low, high, count = (
        stepper.precision,
        Precision("fp32", stepper.device),
        stepper.micro_batch_count,
    )
    try:
        while True:
            stepper.micro_batch_count = micro_batches
            try:
                full = Recording(stepper, batch, model, high)
                return first_fault(full, Recording(stepper, batch, model, low), *tolerances)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
            # outside of the handler: the error holds the tensors of the failed attempt
            release_memory(stepper.device)
            if micro_batches >= batch.max_micro_batches:
                raise OutOfMemoryError(f"memory ran out ({reason})")
            micro_batches *= 2
    finally:
        stepper.micro_batch_count = count


def nonfinite_module(stepper: OptimizerStep, batch: Batch, model: nn.Module) -> Fault | None:
    """The fault of a step whose gradients are not finite, found by computing it again."""
    with suppress(OutOfMemoryError):
        return compare(stepper, batch, model, stepper.micro_batch_count)
    return None


class PinnedModules:
    """The modules that run in fp32 whatever the precision of the step; their record, by name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.found: dict[str, dict[str, Any]] = {}

    def pin(self, names: Mapping[str, dict[str, Any]]) -> None:
        """Run these modules in fp32 from now on. names: with what is recorded about each."""
        modules = dict(self.model.named_modules())
        for name in names.keys() - self.found.keys():
            if name in modules:
                _run_in_fp32(modules[name])
                if "torch._dynamo" in sys.modules:
                    torch._dynamo.reset()  # compiled functions do not see the new one
        self.found |= names


def _run_in_fp32(module: nn.Module) -> None:
    forward = module.forward

    def in_fp32(*inputs: Any, **named: Any) -> Any:
        kind = next((t.device.type for t in _all_tensors(inputs, named)), "cpu")
        with torch.autocast(kind, enabled=False):
            return forward(*_to_fp32(inputs), **_to_fp32(named))

    module.forward = in_fp32


def _all_tensors(inputs: Any, named: Mapping[str, Any]) -> Iterable[Tensor]:
    return (value for value in (*inputs, *named.values()) if isinstance(value, Tensor))


def _to_fp32(value: Any) -> Any:
    """The value with its bf16 and fp16 tensors in fp32."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, dict):
        return {key: _to_fp32(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_to_fp32, value))
    return value


def pin_unstable_modules(
    steppers: Sequence[OptimizerStep], pins: PinnedModules, processes: Processes, seed: int
) -> str:
    """For ``precision: auto``: pin modules that overflow or deviate; a line for the log."""
    low = next((stepper.precision.name for stepper in steppers), "fp32")
    notes: list[str] = []
    if low != "fp32":
        processes.activity = what = "the comparison with fp32"

        def find() -> list[Any]:
            return [*find_pins(pins.model, steppers, pins, seed), pins.found]

        phases, notes, unstable = processes.run_on_rank0(find, what)
        pins.pin(unstable)
        for stepper in steppers:
            if stepper.phase.name in phases:
                stepper.precision = Precision("fp32", stepper.device)
    pinned = "; ".join(f"{name} ({each['reason']})" for name, each in pins.found.items())
    return "; ".join(
        [f"precision auto: {low}" + (f", in fp32: {pinned}" if pinned else ""), *notes]
    )


def find_pins(
    model: nn.Module, steppers: Sequence[OptimizerStep], pins: PinnedModules, seed: int
) -> tuple[list[str], list[str]]:
    """Compare the first batches with fp32 and pin modules until every phase holds.

    Returns the phases that have to run in fp32 as a whole, and notes for the log. Weights, random
    numbers and the order of the data stay as they are. Micro-batches are half as large, so that
    fp32 needs no more memory.
    """
    whole: list[str] = []
    notes: list[str] = []
    for stepper in steppers:
        name = stepper.phase.name
        try:
            fault = _pin_modules(model, stepper, pins, seed)
        except OutOfMemoryError as error:
            notes.append(f"phase {name} was not compared with fp32: {error}")
            continue
        if fault is not None:
            whole.append(name)
            reason = f"{fault.text()}, and no single module is the cause"
            pins.pin({f"the whole phase {name}": {**fault.to_json(), "reason": reason}})
    return whole, notes


def _pin_modules(
    model: nn.Module, stepper: OptimizerStep, pins: PinnedModules, seed: int
) -> Fault | None:
    """Pin modules until the phase holds; what is left if that is not enough."""
    for index in range(min(_BATCHES, stepper.phase.steps())):
        batch = stepper.phase.plan(seed, 0, index)
        parts, tolerances = 2 * stepper.micro_batch_count, (OUTPUT_TOLERANCE, GRADIENT_TOLERANCE)
        while fault := compare(stepper, batch, model, parts, *tolerances):
            if not fault.module or fault.module in pins.found or len(pins.found) == _MAX_PINS:
                return fault
            pins.pin({fault.module: fault.to_json()})
    return None

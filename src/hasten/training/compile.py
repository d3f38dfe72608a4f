"""Apply torch.compile to the hot function of a phase, and report what it gained.

``auto`` times forward and backward of the first batches both ways. It stays compiled if all steps
of the run together save more time than compiling took: batches of new structure compile again, so a
short run would become slower. ``default`` and ``reduce-overhead`` always compile. The report has
the number of graphs and the measured times. Measuring does not change the training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from hasten.distributed.processes import Processes
from hasten.errors import ConfigurationError, is_out_of_memory
from hasten.training.step import OptimizerStep

_PROBE_BATCHES = 3
#: of the time of a step; less is within the noise of the probes
_MIN_GAIN = 0.03
#: graphs per function, which sees several widths, with and without gradients
_GRAPHS = 64


@dataclass(frozen=True)
class CompileReport:
    """The outcome of compiling: number of graphs, whether they are in use.

    compile_seconds: of the first batches, which compile; eager_ms, compiled_ms: of forward and
    backward of a batch, the best of the probes.
    """

    requested: str
    in_effect: bool
    graphs: int = 0
    compile_seconds: float | None = None
    eager_ms: float | None = None
    compiled_ms: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def is_compiling() -> bool:
    """Whether torch.compile is compiling in this thread."""
    return torch._guards.CompileContext.try_get() is not None


def compile_phases(
    steppers: Sequence[OptimizerStep],
    before: Sequence[CompileReport],
    mode: str,
    processes: Processes,
    compile_phase: Callable[[OptimizerStep, str], CompileReport],
) -> list[CompileReport]:
    """Compile all phases, in the same way on all ranks; return their reports.

    before: the reports of a resumed run, which is compiled as before. compile_phase:
    :func:`compile_step` of a phase in a mode, on this rank.
    """
    measured = not before and processes.is_rank0

    def measure(stepper: OptimizerStep) -> dict[str, Any]:
        return compile_phase(stepper, mode).to_json()

    def compile_unmeasured(stepper: OptimizerStep, requested: str) -> None:
        if not measured:
            compile_phase(stepper, "default" if requested == "auto" else requested)

    torch._dynamo.reset()  # so that only the graphs of this run are counted
    # rank 0 measures and decides for all ranks
    reports = list(before) or [
        CompileReport(**processes.run_on_rank0(partial(measure, stepper), "compiling"))
        for stepper in steppers
    ]
    for stepper, report in zip(steppers, reports, strict=False):
        if report.in_effect:
            compile_again = partial(compile_unmeasured, stepper, report.requested)
            processes.run_on_all_ranks("compiling", compile_again)
    return reports


def _probe(stepper: OptimizerStep, seed: int) -> float:
    """Milliseconds of forward and backward per batch, over the first batches of the first epoch."""
    count = min(_PROBE_BATCHES, stepper.phase.steps())
    start_time = time.perf_counter()
    for index in range(count):
        stepper.accumulate(stepper.phase.plan(seed, 0, index))
        stepper.zero_grad()
    if stepper.device.type == "cuda":
        torch.cuda.synchronize(stepper.device)
    return (time.perf_counter() - start_time) / count * 1e3


def compile_step(stepper: OptimizerStep, mode: str, seed: int, epochs: int) -> CompileReport:
    """Compile the phase's hot function in place; ``auto`` undoes it if it does not pay.

    epochs: of the whole run.
    """
    from torch._dynamo.utils import counters  # noqa: PLC0415 - heavy, and only needed here

    compile_mode = None if mode in ("auto", "default") else mode
    compiled: dict[Any, Any] = {}

    def wrap(function: Any) -> Any:
        if function not in compiled:
            compiled[function] = torch.compile(function, mode=compile_mode, dynamic=True)
        return compiled[function]

    counters.clear()
    torch._dynamo.config.recompile_limit = _GRAPHS
    if not stepper.phase.compile_with(wrap):
        note = f"phase {stepper.phase.name} has nothing to compile"
        return CompileReport(mode, in_effect=False, note=note)
    stepper.phase.compile_with(_plain)
    if mode == "auto":
        try:
            _probe(stepper, seed)  # an error here is not the compiler's
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            stepper.zero_grad()
            return CompileReport(mode, in_effect=False, note="memory ran out: not measured")
    # alternate, so that first-touch page faults and other load on the machine affect both
    turns = (_plain, wrap, wrap, _plain) if mode == "auto" else (wrap,)
    times: dict[Any, float] = {}
    try:
        start_time = time.perf_counter()
        stepper.phase.compile_with(wrap)
        _probe(stepper, seed)
        seconds = time.perf_counter() - start_time
        for way in turns:
            stepper.phase.compile_with(way)
            times[way] = min(_probe(stepper, seed), times.get(way, math.inf))
    except Exception as error:
        if mode != "auto":
            raise ConfigurationError(
                f"training.compile={mode} failed: {type(error).__name__}: {error}; "
                "use --compile off, or --compile auto to fall back by itself"
            ) from error
        stepper.phase.compile_with(_plain)
        stepper.zero_grad()
        return CompileReport(mode, in_effect=False, note=f"failed: {type(error).__name__}")
    graphs = int(counters["stats"]["unique_graphs"])
    eager = times.get(_plain)
    steps = epochs * stepper.phase.steps()
    gain = math.inf if eager is None else eager - times[wrap]
    pays = eager is None or (gain >= _MIN_GAIN * eager and gain * steps >= seconds * 1e3)
    note = ""
    if graphs == 0:
        note = "no graph was compiled"
    elif not pays:
        note = (
            f"compiling took {seconds:.0f} s and would save {gain * steps / 1e3:.0f} s of the run"
        )
    keep = note == ""
    stepper.phase.compile_with(wrap if keep else _plain)
    return CompileReport(mode, keep, graphs, round(seconds, 3), eager, times[wrap], note)


def _plain(function: Any) -> Any:
    """The function itself, not compiled."""
    return function

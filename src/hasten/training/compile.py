"""torch.compile of what a step really calls, its graphs counted, kept only where it pays.

``auto`` times forward and backward of the first batches both ways and keeps the faster;
``default`` and ``reduce-overhead`` compile in any case. Either way the report says how many graphs
were compiled and what was measured. Nothing that training depends on is changed by the probe.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hasten.errors import ConfigurationError
from hasten.training.step import OptimiserStep

_PROBE_BATCHES = 3
_MUST_GAIN = 0.97


@dataclass(frozen=True)
class CompileReport:
    """What compiling did: graphs compiled, seconds of the probe batches, whether it is in use."""

    requested: str
    in_effect: bool
    graphs: int = 0
    compile_seconds: float | None = None
    eager_ms: float | None = None
    compiled_ms: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def forget_compiled() -> None:
    """Start from no compiled code, so that the graphs of this run are counted."""
    torch._dynamo.reset()


def _probe(step: OptimiserStep, seed: int) -> float:
    """Milliseconds of forward and backward per batch, over the first batches of the first epoch."""
    count = min(_PROBE_BATCHES, step.phase.steps())
    begin = time.perf_counter()
    for index in range(count):
        step.accumulate(step.phase.plan(seed, 0, index))
        step.optimiser.zero_grad()
    if step.device.type == "cuda":
        torch.cuda.synchronize(step.device)
    return (time.perf_counter() - begin) / count * 1e3


def compile_step(step: OptimiserStep, mode: str, seed: int) -> CompileReport:
    """Compile the phase's hot function in place, or put it back if ``auto`` finds no gain."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 - heavy, and only needed here

    compile_mode = None if mode in ("auto", "default") else mode

    def wrap(function: Any) -> Any:
        return torch.compile(function, mode=compile_mode, dynamic=True)

    counters.clear()
    eager = None
    if mode == "auto":
        _probe(step, seed)
        eager = _probe(step, seed)
    if not step.phase.compile_with(wrap):
        note = f"phase {step.phase.name} has nothing to compile"
        return CompileReport(mode, in_effect=False, note=note)
    begin = time.perf_counter()
    try:
        _probe(step, seed)
        compiled = min(_probe(step, seed) for _ in range(2))
    except Exception as error:
        if mode != "auto":
            raise ConfigurationError(
                f"training.compile={mode} failed: {type(error).__name__}: {error}; "
                "use --compile off, or --compile auto to fall back by itself"
            ) from error
        step.phase.compile_with(lambda function: function)
        step.optimiser.zero_grad()
        return CompileReport(mode, in_effect=False, note=f"failed: {type(error).__name__}")
    seconds = time.perf_counter() - begin
    graphs = int(counters["stats"]["unique_graphs"])
    keep = graphs > 0 and (eager is None or compiled < _MUST_GAIN * eager)
    note = "" if keep else "no graph was compiled" if graphs == 0 else "eager is at least as fast"
    if not keep:
        step.phase.compile_with(lambda function: function)
    return CompileReport(mode, keep, graphs, round(seconds, 3), eager, compiled, note)

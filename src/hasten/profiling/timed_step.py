"""An optimizer step that measures its parts; for profiling only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hasten.distributed.all_reduce import GradientAllReduce
from hasten.objectives.base import Batch, Encoded, Term
from hasten.training.step import OptimizerStep

#: of a step, in the order of what happens
PARTS = ("data", "forward", "backward", "communication", "optimizer")


class Clock:
    """Seconds by part, each measured while the device has nothing else to do."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the seconds of this block to a part."""
        self.synchronize()
        start_time = time.perf_counter()
        yield
        self.synchronize()
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start_time

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are measured."""

        def measured(*arguments: Any, **names: Any) -> Any:
            with self.measure(part):
                return function(*arguments, **names)

        return measured

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


class TimedStep(OptimizerStep):
    """The optimizer step of a phase, with a clock around its parts.

    ``clock.seconds`` has the sums since the last call of :meth:`take`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.clock = Clock(self.device)
        self.phase.wrap_batch_building(lambda function: self.clock.wrap("data", function))
        if self.all_reduce is not None:
            self.all_reduce = _TimedAllReduce(self.all_reduce.processes, self.clock)

    def run(self, seed: int, index: int, lr: float) -> None:
        """Take step ``index`` of the first epoch."""
        with self.clock.measure("data"):
            batch = self.phase.plan(seed, 0, index)
        with self.clock.measure("step"):
            self(batch, lr, (0.0,) * 4)

    def take(self) -> dict[str, float]:
        """The seconds by part since the last call; ``forward`` is what the others leave."""
        measured, self.clock.seconds = self.clock.seconds, {}
        step, gradients = measured.get("step", 0.0), measured.get("gradients", 0.0)
        communication, backward = measured.get("communication", 0.0), measured.get("backward", 0.0)
        prepared = measured.get("prepared", 0.0)
        return {
            "data": measured.get("data", 0.0),
            "forward": gradients - backward - prepared,
            "backward": backward,
            "communication": communication,
            "optimizer": step - gradients - communication,
        }

    def accumulate(self, batch: Batch) -> dict[str, Tensor]:
        before = self.clock.seconds.get("data", 0.0)
        with self.clock.measure("gradients"):
            losses = super().accumulate(batch)
        within = self.clock.seconds.get("data", 0.0) - before
        self.clock.seconds["prepared"] = self.clock.seconds.get("prepared", 0.0) + within
        return losses

    def backward(self, terms: Sequence[Term], losses: dict[str, Tensor]) -> None:
        with self.clock.measure("backward"):
            super().backward(terms, losses)

    def backward_encoded(self, encoded: Encoded, leaves: Encoded) -> None:
        with self.clock.measure("backward"):
            super().backward_encoded(encoded, leaves)


class _TimedAllReduce(GradientAllReduce):
    def __init__(self, processes: Any, clock: Clock) -> None:
        super().__init__(processes)
        self.clock = clock

    def __call__(self, *arguments: Any, **names: Any) -> tuple[dict[str, Tensor], Tensor]:
        with self.clock.measure("communication"):
            return super().__call__(*arguments, **names)

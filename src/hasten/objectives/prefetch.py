"""Prepare the next batch in a thread while the device computes this one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hasten.errors import is_out_of_memory
from hasten.objectives.base import Batch, Phase
from hasten.ops.transfer import Sent, send


def inputs_of(phase: Phase, batch: Batch, parts: Sequence[tuple[int, Tensor]]) -> list[Any]:
    """What ``encode`` and the terms of each of these micro-batches need, on the host."""
    inputs = [phase.encode_inputs(batch)]
    return inputs + [phase.term_inputs(batch, ids) for _, ids in parts]


@dataclass(frozen=True)
class Wanted:
    """A batch of a phase, and the micro-batches whose inputs are wanted (:meth:`Batch.parts`)."""

    seed: int
    epoch: int
    index: int
    numbers: range
    count: int


class Prefetcher:
    """The batches of a phase with their inputs on the device, copied on a stream of their own.

    Not for CPUs: there a thread would only compete with the step.
    """

    def __init__(self, phase: Phase, device: torch.device) -> None:
        self.phase, self.device = phase, device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = ThreadPoolExecutor(1, "batches")
        self._next: tuple[Wanted, Future[tuple[Batch, Sent[Any]]]] | None = None

    def take(self, wanted: Wanted) -> Batch:
        """The batch, ready if it follows that of the last call; then begin with the next one.

        Batches and inputs depend only on the arguments, so they can be prepared in another thread.
        If memory runs out there, the batch comes without inputs, and the step prepares them.
        """
        if self._next is None or self._next[0] != wanted:
            self.cancel()
            self._next = wanted, self._pool.submit(self._send, wanted)
        try:
            batch, sent = self._next[1].result()
            batch = replace(batch, inputs=sent.received(), packed=sent.buffer)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            batch = self.phase.plan(wanted.seed, wanted.epoch, wanted.index)
        self._next = None
        if wanted.index + 1 < self.phase.steps():
            following = replace(wanted, index=wanted.index + 1)
            self._next = following, self._pool.submit(self._send, following)
        return batch

    def cancel(self) -> None:
        """Forget the batch that is being prepared, and wait until it no longer is."""
        if self._next is not None:
            self._next[1].exception()
            self._next = None

    def _send(self, wanted: Wanted) -> tuple[Batch, Sent[Any]]:
        batch = self.phase.plan(wanted.seed, wanted.epoch, wanted.index)
        inputs = inputs_of(self.phase, batch, batch.parts(wanted.numbers, wanted.count))
        return batch, send(inputs, self.device, self.stream)

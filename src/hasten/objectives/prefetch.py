"""Prepare the next batch in a thread, during the current step on the device."""

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

#: least rows that a step reads for processes to tell each other those of their examples: a message
#: takes about 1 ms of a CPU, and finding a row 50 to 150 ns (bench.planning)
MANY_ROWS = 1 << 15


def local_batch(phase: Phase, batch: Batch, numbers: range, count: int) -> Batch:
    """The batch with the examples of these micro-batches, out of ``count`` on all processes.

    It keeps the ids and denominators of the global batch; ``local_micro_batches`` has the
    ids of this process. If a step reads few rows of a table, the same batch: each process finds
    those of all examples.
    """
    if phase.table is not None and phase.table.expected_rows < MANY_ROWS:
        return batch
    return batch.for_process(numbers, count, phase.communicates)


def batch_inputs(
    phase: Phase, batch: Batch, micro_batches: Sequence[tuple[int, Tensor]]
) -> list[Any]:
    """On the host, the inputs of ``encode``, then those of ``terms`` for each micro-batch."""
    inputs = [phase.encode_inputs(batch)]
    return inputs + [phase.term_inputs(batch, ids) for _, ids in micro_batches]


@dataclass(frozen=True)
class BatchRequest:
    """A batch, and the micro-batches whose inputs to prepare: ``numbers`` of ``count``."""

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
        self._next: tuple[BatchRequest, Future[tuple[Batch, Sent[Any]]]] | None = None

    def take(self, request: BatchRequest) -> Batch:
        """Return the batch, and start to prepare the one after it.

        Batches and inputs depend only on the arguments, so they can be prepared in another thread.
        If memory runs out there, the batch comes without inputs, and the step prepares them.
        """
        if self._next is None or self._next[0] != request:
            self.cancel()
            self._next = request, self._pool.submit(self._send, request)
        try:
            batch, sent = self._next[1].result()
            batch = replace(batch, inputs=sent.received(), packed=sent.buffer)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            batch = self._plan(request)
        self._next = None
        if request.index + 1 < self.phase.steps():
            following = replace(request, index=request.index + 1)
            self._next = following, self._pool.submit(self._send, following)
        return batch

    def cancel(self) -> None:
        """Forget the batch that is being prepared, and wait until it no longer is."""
        if self._next is not None:
            self._next[1].exception()
            self._next = None

    def _plan(self, request: BatchRequest) -> Batch:
        batch = self.phase.plan(request.seed, request.epoch, request.index)
        return local_batch(self.phase, batch, request.numbers, request.count)

    def _send(self, request: BatchRequest) -> tuple[Batch, Sent[Any]]:
        batch = self._plan(request)
        inputs = batch_inputs(
            self.phase, batch, batch.micro_batches(request.numbers, request.count)
        )
        return batch, send(inputs, self.device, self.stream)

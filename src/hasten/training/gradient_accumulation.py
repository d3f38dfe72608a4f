"""Gradients of a batch, accumulated over its micro-batches.

The loss is the sum over terms of ``weight * numerator / denominator``; a term's ``multiplier`` is
``weight / denominator``. Denominators are counts over the global batch, so the gradients of
micro-batches and of processes add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.objectives.prefetch import BatchRequest, Prefetcher, batch_inputs
from hasten.ops.random import Stream, key, seed_device
from hasten.ops.transfer import to_device
from hasten.training.optimizers.make import make_optimizer
from hasten.training.precision import Precision, in_matmul_precision, uses_tf32


@dataclass(frozen=True)
class DataParallelRank:
    """The process that takes the ``rank``-th of ``world_size`` equal shares of a global batch."""

    rank: int = 0
    world_size: int = 1


class GradientAccumulation:
    """Accumulates the gradients of this process's share of a batch, for one phase."""

    def __init__(
        self,
        phase: Phase,
        phase_index: int,
        options: TrainingOptions,
        precision: Precision,
        data_parallel: DataParallelRank,
        device: torch.device,
    ) -> None:
        self.phase, self.phase_index = phase, phase_index
        self.options, self.precision = options, precision
        self.data_parallel, self.device = data_parallel, device
        self.parameters = list(phase.parameters())  # those of the model that this phase updates
        self.optimizer = make_optimizer(phase, options, scaled=precision.scaler is not None)
        self.tf32 = uses_tf32(options.matmul, device)
        self.prefetcher = None if device.type == "cpu" else Prefetcher(phase, device)
        self.micro_batch_count = options.accumulate  # of a step, in this process
        #: whether Phase.encode has a result, whose memory smaller micro-batches do not reduce
        self.shares_encoding = False

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        """The batch of a step. On a GPU, the prefetcher also copies its inputs to the device."""
        if self.prefetcher is None:
            return self.phase.plan(seed, epoch, index)
        return self.prefetcher.take(BatchRequest(seed, epoch, index, *self.local_micro_batch_range))

    @property
    def local_micro_batch_range(self) -> tuple[range, int]:
        """The numbers of this process's micro-batches, and the total over all processes."""
        first, count = self.data_parallel.rank * self.micro_batch_count, self.micro_batch_count
        return range(first, first + count), self.data_parallel.world_size * count

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad()

    @in_matmul_precision
    def accumulate(self, batch: Batch) -> dict[str, Tensor]:
        """Accumulate the gradients over the micro-batches; return the detached losses by name."""
        losses: dict[str, Tensor] = {}
        micro_batches = batch.micro_batches(*self.local_micro_batch_range, self.phase.communicates)
        # inputs[0] is for encode, inputs[1:] for the micro-batches. The prefetcher has copied them
        # to the GPU, or they are copied below. On a CPU they are None: encode and terms build them
        inputs = batch.inputs or [None] * (1 + len(micro_batches))
        if self.device.type != "cpu" and batch.inputs is None:
            inputs = to_device(batch_inputs(self.phase, batch, micro_batches), self.device)
        self.shares_encoding = True  # in case encode runs out of memory; corrected below
        if self.phase.one_seed_per_step:  # else encode seeds itself, and the loop each part
            self.seed(batch, micro_batches[0][0])
        encoded, leaves = self.encode(replace(batch, inputs=inputs[0]))
        self.shares_encoding = bool(encoded)
        for (part, ids), micro_inputs in zip(micro_batches, inputs[1:], strict=True):
            if not self.phase.one_seed_per_step:
                self.seed(batch, part)
            with self.precision.autocast():
                terms = self.phase.terms(leaves, replace(batch, inputs=micro_inputs), ids)
            self.backward(terms, losses)
        # on rank 0 only: the all-reduce sums gradients, so each rank would add these terms again
        if self.data_parallel.rank == 0:
            with self.precision.autocast():
                terms = self.phase.regularizers(leaves, batch)
            self.backward(terms, losses)
        self.backward_encoded(encoded, leaves)
        return losses

    def encode(self, batch: Batch) -> tuple[Encoded, Encoded]:
        """The result of Phase.encode, and its detached copies, where gradients accumulate."""
        rows = self.optimizer.gather_rows(batch)  # RowAdam only; otherwise None
        if rows is not None:
            self.phase.start_step()  # usually called by encode
            return (rows,), (rows,)
        with self.precision.autocast():
            encoded = self.phase.encode(batch)
        return encoded, tuple(t.detach().requires_grad_(t.requires_grad) for t in encoded)

    def seed(self, batch: Batch, part: int) -> None:
        """Seed dropout from the step and ``part``, the micro-batch's number over all processes."""
        seed = key(batch.seed, Stream.DROPOUT, batch.epoch, self.phase_index, batch.index, part)
        seed_device(self.device, seed)

    def backward(self, terms: Sequence[Term], losses: dict[str, Tensor]) -> None:
        """Add the gradients of these terms, and their values to ``losses``."""
        for term in terms:
            value = (term.numerator.detach() * term.multiplier).float()
            losses[term.name] = losses[term.name] + value if term.name in losses else value
        self.precision.backward([t.numerator for t in terms], [t.multiplier for t in terms])

    def backward_encoded(self, encoded: Encoded, leaves: Encoded) -> None:
        """One backward pass through the encoder, from the gradients accumulated at its outputs."""
        # rows that RowAdam gathered have no encoder: tensor and leaf are the same
        pairs = [
            (t, leaf.grad)
            for t, leaf in zip(encoded, leaves, strict=True)
            if leaf.grad is not None and t is not leaf
        ]
        if pairs and self.device.type == "cpu":
            # given gradients, torch imports sympy to check shapes: 0.4 s and 35 MiB
            total = _WithGradients.apply(*chain.from_iterable(pairs))  # type: ignore[no-untyped-call]
            torch.autograd.backward(total)
        elif pairs:  # on a GPU the two operations more of a scalar cost more than the import
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])


class _WithGradients(torch.autograd.Function):
    """A zero whose backward pass gives each tensor of (tensor, gradient, ...) its gradient."""

    @staticmethod
    def forward(ctx: Any, *pairs: Tensor) -> Tensor:
        ctx.gradients = pairs[1::2]
        return pairs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(x for gradient in ctx.gradients for x in (gradient, None))

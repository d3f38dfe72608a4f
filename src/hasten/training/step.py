"""One optimizer step: micro-batches, backward, all-reduce, non-finite check, clipping, update.

The loss is the sum over terms of ``weight * numerator / denominator``. Denominators are global, so
the gradients of micro-batches (and of processes) add up to the gradient of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.distributed.all_reduce import GradientAllReduce
from hasten.distributed.processes import Processes
from hasten.errors import OutOfMemoryError, first_line, is_out_of_memory
from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.ops.random import Stream, key, seed_device
from hasten.training.memory import release_memory
from hasten.training.optimizers.make import make_optimizer
from hasten.training.precision import Precision, gradient_norm


@dataclass(frozen=True)
class DataShard:
    """The part of every global batch that this process takes: shard ``rank`` of ``world_size``."""

    rank: int = 0
    world_size: int = 1


class OptimizerStep:
    """The step of one phase. Non-finite gradients never reach the weights or the moments."""

    def __init__(
        self,
        phase: Phase,
        phase_index: int,
        options: TrainingOptions,
        precision: Precision,
        shard: DataShard,
        device: torch.device,
        processes: Processes | None = None,
    ) -> None:
        self.phase = phase
        self.phase_index = phase_index
        self.options = options
        self.precision = precision
        self.shard = shard
        self.device = device
        #: the model's parameters that this phase updates
        self.parameters = list(phase.parameters())
        self.optimizer = make_optimizer(phase, options, scaled=precision.scaler is not None)
        self.all_reduce = GradientAllReduce(processes) if processes and processes.joined else None
        #: the flags of all processes, summed in the last step; None without a process group
        self.summed_control_flags: Tensor | None = None
        #: micro-batches per step of this process
        self.micro_batches = options.accumulate
        #: whether what the last batch encoded once was shared by its micro-batches
        self.shares_encoding = False
        #: leave out steps that run out of memory, for :mod:`.memory_recovery` to repeat
        self.retreats = False
        #: called after the backward pass: raises MemoryError if the run exceeds its memory budget
        self.check_memory: Callable[[], None] = lambda: None
        #: (index of the batch, reason) of the first step that this process left out
        self.out_of_memory: tuple[int, str] | None = None
        #: [1] on how many processes memory has run out; None without a process group
        self.summed_failures: Tensor | None = None
        #: steps in a row whose gradients were not finite, and the number of all such steps
        self.consecutive_nonfinite_steps = torch.zeros((), dtype=torch.int64, device=device)
        self.nonfinite_steps = torch.zeros((), dtype=torch.int64, device=device)

    def __call__(
        self, batch: Batch, lr: float, control_flags: Sequence[float] = ()
    ) -> dict[str, Tensor]:
        """Take the step; return the loss terms of the whole batch, detached.

        The returned dict has the key "steps": 1 for a step that was taken. If the step is skipped,
        every value, including "steps", is 0. control_flags: of this process; afterwards
        :attr:`summed_control_flags` holds the sum over all processes. In a run of one process, the
        dict is empty if memory ran out.
        """
        self.zero_grad()
        losses = self.try_accumulate(batch)
        if self.out_of_memory is not None and self.alone:
            return {}
        # with a row-wise optimizer these are the rows that the batch reads, not the whole table
        parameters = self.optimizer.parameters
        if self.all_reduce is not None:
            flags = [*control_flags, float(self.out_of_memory is not None)]
            losses, summed = self.all_reduce(parameters, losses, flags, self.phase.buffers_to_sum())
            self.summed_control_flags, self.summed_failures = summed[:-1], summed[-1:]
        losses["steps"] = torch.ones((), device=self.device)
        self.precision.unscale(self.optimizer)
        norm = gradient_norm(parameters)
        finite = norm < math.inf  # False for NaN; one operation where isfinite takes four
        self.clip(parameters, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.try_update(finite)
        # after the phase's last step of the epoch, apply what the row-wise optimizer deferred
        if batch.index == self.phase.steps() - 1:
            self.optimizer.flush()
        self.phase.end_step(finite)
        skipped = ~finite
        self.nonfinite_steps += skipped
        self.consecutive_nonfinite_steps.add_(1).mul_(skipped)
        zero = norm.new_zeros(())
        return {name: torch.where(finite, value, zero) for name, value in losses.items()}

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad()

    @property
    def alone(self) -> bool:
        """Whether no other process takes part in the step."""
        return self.all_reduce is None or self.all_reduce.processes.world == 1

    def try_accumulate(self, batch: Batch) -> dict[str, Tensor]:
        """:meth:`accumulate`, and zeros for missing gradients.

        If memory runs out here, or ran out in an earlier step that is still to be repeated, there
        are no losses. With several processes one gradient is NaN then: the all-reduce makes every
        process skip the step, without further communication.
        """
        if self.out_of_memory is None:
            try:
                losses = self.accumulate(batch)
                self.check_memory()
                if self.alone:  # the all-reduce of several processes fills in the zeros
                    for parameter in self.optimizer.parameters:
                        if parameter.grad is None:
                            parameter.grad = torch.zeros_like(parameter)
                return losses
            except (MemoryError, RuntimeError) as error:
                if not self.retreats or not is_out_of_memory(error):
                    raise
                self.out_of_memory = batch.index, first_line(error)
            # outside of the handler: the error holds the tensors of the failed attempt
            self.zero_grad()
            release_memory(self.device)
        if not self.alone:
            self.optimizer.skip_rows(batch)
            first = self.optimizer.parameters[0]
            first.grad = first.new_full((), torch.nan).expand_as(first)
        return {}

    def forget_skipped(self, steps: int) -> None:
        """Take the last steps, skipped for lack of memory, out of the counts and the loss scale."""
        self.out_of_memory = None
        if not self.alone:
            assert self.all_reduce is not None
            self.all_reduce.forget_loss_names()
            self.nonfinite_steps -= steps
            self.consecutive_nonfinite_steps -= steps
            if (scaler := self.precision.scaler) is not None:
                scaler.update(scaler.get_scale() / scaler.get_backoff_factor() ** steps)

    def accumulate(self, batch: Batch) -> dict[str, Tensor]:
        """Gradients of the batch, micro-batch by micro-batch; the detached losses by name."""
        losses: dict[str, Tensor] = {}
        parts = self.shard.world_size * self.micro_batches
        # if memory runs out in encode(), smaller micro-batches do not help
        self.shares_encoding = True
        encoded, leaves = self.encode(batch)
        self.shares_encoding = bool(encoded)
        for micro in range(self.micro_batches):
            part = self.shard.rank * self.micro_batches + micro
            ids = batch.micro_batch(part, parts)
            if len(ids):
                self.seed(batch, part)
                with self.precision.autocast():
                    terms = self.phase.terms(leaves, batch, ids)
                self.backward(terms, losses)
        # on rank 0 only: gradients are summed over ranks, so these terms would be multiplied
        if self.shard.rank == 0:
            with self.precision.autocast():
                terms = self.phase.regularizers(leaves, batch)
            self.backward(terms, losses)
        self.backward_encoded(encoded, leaves)
        return losses

    def encode(self, batch: Batch) -> tuple[Encoded, Encoded]:
        """What the phase encodes once per step, and the leaves that accumulate its gradients."""
        # a row-wise optimizer applies the missed updates of the rows that this batch reads and
        # returns these rows: nothing is encoded then; a dense optimizer returns None
        rows = self.optimizer.gather_rows(batch)
        if rows is not None:
            return (rows,), (rows,)
        with self.precision.autocast():
            encoded = self.phase.encode(batch)
        return encoded, tuple(t.detach().requires_grad_(t.requires_grad) for t in encoded)

    def seed(self, batch: Batch, part: int) -> None:
        """Seed dropout from the step and the number of the micro-batch, counted over all processes.

        A resumed run therefore draws the same masks.
        """
        value = key(batch.seed, Stream.DROPOUT, batch.epoch, self.phase_index, batch.index, part)
        seed_device(self.device, value)

    def backward(self, terms: Sequence[Term], losses: dict[str, Tensor]) -> None:
        """Add the gradients of these terms, and their values to ``losses``."""
        total: Tensor | None = None
        for term in terms:
            value = term.numerator * (term.weight / term.denominator)
            total = value if total is None else total + value
            detached = value.detach().float()
            losses[term.name] = losses[term.name] + detached if term.name in losses else detached
        if total is not None and total.requires_grad:
            self.precision.backward(total)

    def backward_encoded(self, encoded: Encoded, leaves: Encoded) -> None:
        """One backward pass through the encoder, from the gradients accumulated at its outputs."""
        # rows gathered by the optimizer are their own leaves: there is no encoder behind them
        pairs = [
            (t, leaf.grad)
            for t, leaf in zip(encoded, leaves, strict=True)
            if leaf.grad is not None and t is not leaf
        ]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])

    def clip(self, parameters: Sequence[Tensor], norm: Tensor) -> None:
        """Clip the gradients (loss scale already removed) to ``clip_norm``; norm: their 2-norm."""
        limit, kind = self.options.clip_norm, float(self.options.clip_norm_type)
        if limit is not None:
            norm = norm if kind == 2 else gradient_norm(parameters, kind)
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)

    def try_update(self, finite: Tensor) -> None:
        """:meth:`update`, repeated once if memory runs out before anything has changed.

        Gradients are final here, so a process repeats it without the others.
        """
        if self.out_of_memory is not None:  # skipped on all processes
            if self.precision.scaler is not None:
                self.precision.scaler.update()
            return
        before = self.optimizer.progress
        try:
            self.update(finite)
            return
        except (MemoryError, RuntimeError) as error:
            if not self.retreats or not is_out_of_memory(error):
                raise
            reason = first_line(error)
        if self.optimizer.progress != before:
            raise OutOfMemoryError(
                f"memory ran out while the optimizer changed the weights ({reason}); they are not "
                "saved. Use a smaller model, or free memory; hasten resume goes on from the last "
                "checkpoint"
            )
        self.optimizer.drop_incomplete_state()
        release_memory(self.device)
        self.update(finite)

    def update(self, finite: Tensor) -> None:
        """Step the optimizer unless the gradients are non-finite.

        Decided on the device, without a host synchronization.
        """
        if self.precision.scaler is not None:
            self.precision.scaler.step(self.optimizer)
            self.precision.scaler.update()
            return
        # fused optimizers skip weights, moments and step count where found_inf is 1
        self.optimizer.grad_scale = None
        self.optimizer.found_inf = (~finite).float()
        self.optimizer.step()

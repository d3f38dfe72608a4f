"""One optimizer step: gradients, all-reduce, non-finite check, clipping, update.

RowAdam (:mod:`.optimizers.row_adam`) is Adam for a table of which a step reads few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.distributed.all_reduce import GradientAllReduce
from hasten.distributed.processes import Processes
from hasten.distributed.touched_rows import touched_rows
from hasten.errors import OutOfMemoryError, first_line, is_out_of_memory
from hasten.objectives.base import Batch, Phase
from hasten.objectives.prefetch import local_batch
from hasten.training.gradient_accumulation import DataParallelRank, GradientAccumulation
from hasten.training.memory.device import release_memory
from hasten.training.precision import Precision


class OptimizerStep(GradientAccumulation):
    """Takes the optimizer steps of one phase, and skips those with non-finite gradients."""

    def __init__(
        self,
        phase: Phase,
        phase_index: int,
        options: TrainingOptions,
        precision: Precision,
        data_parallel: DataParallelRank,
        device: torch.device,
        processes: Processes | None = None,
    ) -> None:
        super().__init__(phase, phase_index, options, precision, data_parallel, device)
        self.all_reduce = GradientAllReduce(processes) if processes and processes.joined else None
        # with RowAdam, each process gathers all rows that any process reads: ``union`` finds them
        if self.all_reduce is not None and self.optimizer.gathers:
            phase.union = self.all_reduce.union_for_batches()
        #: ControlFlags of the last step, summed over all processes; None without a process group
        self.summed_control_flags: Tensor | None = None
        #: if set, called instead of :meth:`eager`: captures the step in a CUDA graph, replays it
        self.replay: Callable[[Batch, Sequence[float]], dict[str, Tensor]] | None = None
        #: skip a step that runs out of memory, for :mod:`.memory_recovery` to repeat it; else raise
        self.skips_when_out_of_memory = False
        #: called after the backward pass: raises MemoryError if the run exceeds its memory budget
        self.check_memory: Callable[[], None] = lambda: None
        #: (index of the batch, reason) of the earliest step skipped here because memory ran out,
        #: until it is repeated; else None
        self.out_of_memory: tuple[int, str] | None = None
        #: float [1]: the number of processes whose memory ran out; None without a process group
        self.summed_failures: Tensor | None = None
        self.zero = torch.zeros((), device=device)
        # the pair (found_inf, steps): (1, 0) for a skipped step, (0, 1) for a taken one
        self.if_skipped, self.if_taken = torch.eye(2, device=device).unbind()
        #: non-finite steps in a row, and all of them: float32 like found_inf, exact below 2^24
        self.consecutive_nonfinite_steps = torch.zeros((), device=device)
        self.nonfinite_steps = torch.zeros((), device=device)

    def __call__(
        self, batch: Batch, lr: float, control_flags: Sequence[float] = ()
    ) -> dict[str, Tensor]:
        """Take the step; return the loss terms of the whole batch, detached.

        The entry "steps" is 1; for a skipped step all entries are 0. In a run of one process, a
        step that ran out of memory returns {}. control_flags: requests of this process to stop or
        to save, which the all-reduce sums.
        """
        self.optimizer.set_rate(lr)
        losses = (self.replay or self.eager)(batch, control_flags)
        if losses and batch.index == self.phase.steps() - 1:
            # RowAdam postpones updates of a row until it is next read. Apply the rest at the end,
            # but not in ``eager``, which a CUDA graph replays in every step
            self.optimizer.flush()
        return losses

    def eager(self, batch: Batch, control_flags: Sequence[float] = ()) -> dict[str, Tensor]:
        """Take the step operation by operation; the learning rate is already set."""
        batch = local_batch(self.phase, batch, *self.local_micro_batch_range)  # ids stay global
        self.zero_grad()
        losses = self.try_accumulate(batch)
        if self.out_of_memory is not None and self.is_single_process:
            return {}
        if self.all_reduce is not None:
            flags = [*control_flags, float(self.out_of_memory is not None)]
            tensors, buffers = self.optimizer.to_sum, self.phase.buffers_to_sum()
            rows = touched_rows(self.phase.table, tensors, batch, self.all_reduce.union)
            losses, summed_flags = self.all_reduce(tensors, losses, flags, buffers, rows)
            self.optimizer.combine_row_gradients()  # of sharded tables
            self.summed_control_flags, self.summed_failures = summed_flags[:-1], summed_flags[-1:]
        self.precision.unscale(self.optimizer)
        norm = self.optimizer.gradient_norm()
        finite = norm < math.inf  # False for NaN; one operation where isfinite takes four
        found_inf, steps = torch.where(finite, self.if_taken, self.if_skipped).unbind()
        self.clip(norm)
        self.try_update(found_inf)
        self.phase.end_step(finite)
        self.nonfinite_steps += found_inf
        count = self.consecutive_nonfinite_steps
        torch.addcmul(found_inf, count, found_inf, out=count)  # (count + 1) * found_inf
        kept = {name: torch.where(finite, value, self.zero) for name, value in losses.items()}
        return kept | {"steps": steps}

    @property
    def is_single_process(self) -> bool:
        """Whether this process alone takes the step."""
        return self.all_reduce is None or self.all_reduce.processes.world == 1

    def try_accumulate(self, batch: Batch) -> dict[str, Tensor]:
        """Run :meth:`accumulate`, and set missing gradients to zero.

        Returns {} if memory runs out, or ran out in an earlier step that is not yet repeated. With
        several processes, it sets one gradient to NaN: after the all-reduce all skip the step.
        """
        if self.out_of_memory is None:
            try:
                losses = self.accumulate(batch)
                self.check_memory()
                if self.is_single_process:  # the all-reduce of several processes fills in the zeros
                    for parameter in self.optimizer.parameters:
                        if parameter.grad is None:
                            parameter.grad = torch.zeros_like(parameter)
                return losses
            except (MemoryError, RuntimeError) as error:
                if not self.skips_when_out_of_memory or not is_out_of_memory(error):
                    raise
                self.out_of_memory = batch.index, first_line(error)
            # not in the except block: there the error keeps the tensors of the failed step alive
            self.zero_grad()
            release_memory(self.device)
        if not self.is_single_process:
            self.optimizer.skip_rows(batch)  # zero gradients for the rows, as none were gathered
            first = self.optimizer.parameters[0]
            first.grad = first.new_full((), torch.nan).expand_as(first)
        return {}

    def undo_skipped_steps(self, steps: int) -> None:
        """Undo the side effects of the last ``steps`` steps, which ran out of memory.

        With several processes, each of these steps counted as non-finite and lowered the loss
        scale. With one process, :meth:`eager` returned before it did either.
        """
        self.out_of_memory = None
        if not self.is_single_process:
            assert self.all_reduce is not None
            self.all_reduce.forget_loss_names()  # a process that skipped the first step has none
            self.nonfinite_steps -= steps
            self.consecutive_nonfinite_steps -= steps
            if (scaler := self.precision.scaler) is not None:
                scaler.update(scaler.get_scale() / scaler.get_backoff_factor() ** steps)

    def clip(self, norm: Tensor) -> None:
        """Clip the unscaled gradients to ``clip_norm``. norm: their 2-norm."""
        max_norm, norm_type = self.options.clip_norm, float(self.options.clip_norm_type)
        if max_norm is not None:
            norm = norm if norm_type == 2 else self.optimizer.gradient_norm(norm_type)
            # of a RowAdam table, these are the rows that the batch reads
            torch.nn.utils.clip_grads_with_norm_(self.optimizer.parameters, max_norm, norm)

    def try_update(self, found_inf: Tensor) -> None:
        """:meth:`update`, repeated once if memory runs out before anything has changed.

        The gradients are complete, so a process can repeat the update without the others.
        """
        if self.out_of_memory is not None:  # all processes skip the step and lower the loss scale
            if self.precision.scaler is not None:
                self.precision.scaler.update()
            return
        before = self.optimizer.change_counter
        try:
            self.update(found_inf)
            return
        except (MemoryError, RuntimeError) as error:
            if not self.skips_when_out_of_memory or not is_out_of_memory(error):
                raise
            reason = first_line(error)
        if self.optimizer.change_counter != before:
            raise OutOfMemoryError(
                f"memory ran out while the optimizer changed the weights ({reason}); they are not "
                "saved. Use a smaller model, or free memory; hasten resume goes on from the last "
                "checkpoint"
            )
        self.optimizer.drop_incomplete_state()
        release_memory(self.device)
        self.update(found_inf)

    def update(self, found_inf: Tensor) -> None:
        """Step the optimizer unless ``found_inf`` is 1, decided without a host synchronization."""
        if self.precision.scaler is not None:
            self.precision.scaler.step(self.optimizer)
            self.precision.scaler.update()
            return
        # fused optimizers skip weights, moments and step count where found_inf is 1
        self.optimizer.grad_scale = None
        self.optimizer.found_inf = found_inf
        self.optimizer.step()

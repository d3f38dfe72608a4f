"""When memory runs out: repeat the step, or the part of an evaluation, with less memory.

A step that fails in the forward or backward pass is left out and repeated: first with activation
checkpointing where the model supports it, then with twice as many micro-batches, down to one
example in each. All processes repeat it with the same settings. An update of the optimizer is
repeated after cached memory was freed, unless it has changed something. An evaluation goes on with
half as many queries at a time, in blocks of half as many candidates.

A step or a part of an evaluation that exceeds the memory budget of the run is repeated as well.

Settings that were reduced stay so, also when the run resumes. Results are the same up to rounding;
with dropout, micro-batches draw other masks, as with ``training.accumulate``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn

from hasten.distributed.processes import Processes
from hasten.errors import OutOfMemoryError
from hasten.evaluation.query_tiles import TileMemoryRetry
from hasten.evaluation.ranker import Evaluation
from hasten.models.interface import Model
from hasten.models.supports import Supports
from hasten.objectives.base import Batch
from hasten.training.memory.budget import MemoryBudget
from hasten.training.memory.device import peak_bytes, release_memory
from hasten.training.step import OptimizerStep

if TYPE_CHECKING:
    from hasten.runs.journal import Journal, RankLog
    from hasten.training.state import TrainingState

#: memory of the host that the first use of activation checkpointing may need
_IMPORT_BYTES = 192 * 2**20


class OutOfMemoryRecovery:
    """Reduces the memory that steps and evaluations need, and records what it did in the state."""

    def __init__(
        self,
        model: nn.Module,
        steppers: Sequence[OptimizerStep],
        state: TrainingState,
        journal: Journal | RankLog,
        processes: Processes,
    ) -> None:
        self.model, self.steppers, self.state = model, steppers, state
        self.journal, self.processes = journal, processes
        self.memory_retry = TileMemoryRetry(self.release)
        #: whether activation checkpointing needs too much memory itself
        self.refused = False
        for stepper in steppers:
            stepper.skips_when_out_of_memory = True
        self.set_budget(None)

    def set_budget(self, budget: int | None) -> None:
        """Set the memory budget, in bytes; None: no limit."""
        self.budget = MemoryBudget(budget, self.processes.device)
        self.memory_retry.check_memory = self.check_tile
        for stepper in self.steppers:
            stepper.check_memory = self.budget.check

    def check_tile(self) -> None:
        """Raise MemoryError if an evaluation exceeds the budget and fewer queries may help."""
        try:
            self.budget.check()
        except MemoryError:
            if not self.budget.stuck:
                raise
            self.memory_retry.check_memory = lambda: None

    def disable(self) -> None:
        """Raise the errors of steps, to measure what the settings need as they are."""
        for stepper in self.steppers:
            stepper.skips_when_out_of_memory = False

    def release(self) -> None:
        """Free the gradients of the last step and cached memory."""
        for stepper in self.steppers:
            stepper.zero_grad()
        release_memory(self.processes.device)
        self.budget.begin()

    def recover(self, stepper: OptimizerStep, batch: Batch, ask_others: bool) -> bool:
        """If memory ran out: set the position back and reduce the settings. Returns whether it did.

        ask_others: check for failures on other processes too, which synchronizes. All processes
        have skipped the failed step and the steps since then; these are repeated too. Raises
        OutOfMemoryError if no settings need less memory.
        """
        if stepper.is_single_process:
            failed = stepper.out_of_memory is not None
        else:
            assert stepper.summed_failures is not None
            failed = ask_others and float(stepper.summed_failures) > 0
        if not failed:
            return False
        by_rank = self.processes.gather(stepper.out_of_memory, "memory that ran out")
        index, reason, rank = min(
            (*failure, rank) for rank, failure in enumerate(by_rank) if failure is not None
        )
        position, before = self.state.position, self.state.position.step
        while position.index > index:
            batch = stepper.phase.plan(batch.seed, batch.epoch, position.index - 1)
            self.state.advance(stepper.phase, batch, -1)
        stepper.undo_skipped_steps(before - position.step)
        self.release()
        where = f" on rank {rank}" if self.processes.world > 1 else ""
        self.reduce(stepper, batch, f"memory ran out{where} ({reason})")
        return True

    def reduce(self, stepper: OptimizerStep, batch: Batch, problem: str) -> None:
        """Choose settings that need less memory for this batch."""
        count, model = stepper.micro_batch_count, self.model
        where = f"step {self.state.position.step + 1}, phase {stepper.phase.name}"
        if self.can_recompute(model):
            model.recompute, self.budget.failed = True, math.inf
            self.record(f"{where}: {problem}; repeated with activation checkpointing")
            return
        most = -(-batch.max_micro_batches // self.processes.world)
        useless = self.budget.stuck or (self.budget.exceeded and count >= most)
        if any(self.processes.gather(useless, "the memory budget")):
            self.budget.stop()
            self.record(
                f"{where}: {problem}, with {count} micro-batches; more do not help: the run "
                "continues above its budget"
            )
            return
        if count >= most:
            error = OutOfMemoryError(
                f"{where}: {problem}, with {count} micro-batches. {_indivisible(stepper, batch)}. "
                "Free memory and continue from the last checkpoint with hasten resume, or train "
                "with a smaller --batch-size or model.width; hasten plan shows what needs memory"
            )
            error.agreed = True
            raise error
        count = min(2 * count, most)
        for each in self.steppers:
            each.micro_batch_count = count
        self.record(f"{where}: {problem}; repeated with {count} micro-batches per process")

    def can_recompute(self, model: nn.Module) -> TypeGuard[Model]:
        """Whether activation checkpointing can be turned on, on all processes.

        Its first call imports ``torch._dynamo``: without room for that, it would do harm.
        """
        if self.refused or not isinstance(model, Model) or model.recompute:
            return False
        if not Supports.of(type(model)).recompute:
            return False
        room = "torch._dynamo" in sys.modules or self.budget.has_room(2 * _IMPORT_BYTES)
        if room and "torch._dynamo" not in sys.modules:
            try:
                torch.empty(_IMPORT_BYTES, dtype=torch.uint8)
            except (MemoryError, RuntimeError):
                room = False
        self.refused = not all(self.processes.gather(room, "activation checkpointing"))
        return not self.refused

    def record(self, text: str) -> None:
        """Record the settings that are in effect now. text: what happened, for the log."""
        position, model = self.state.position, self.model
        self.state.retreats.append(
            {
                "step": position.step,
                "accumulate": self.steppers[0].micro_batch_count if self.steppers else None,
                "recompute": isinstance(model, Model) and model.recompute,
                "evaluation_queries": self.memory_retry.rows,
            }
        )
        self.journal.warn(text)
        event = {"event": "out_of_memory", "what": text}
        self.journal.record("event", position.epoch, position.step, event)

    def restore(self) -> None:
        """Apply the settings that were recorded last."""
        if not self.state.retreats:
            return
        last = self.state.retreats[-1]
        if isinstance(self.model, Model):
            self.model.recompute |= last["recompute"]
        for stepper in self.steppers:
            stepper.micro_batch_count = last["accumulate"]
        self.memory_retry.rows = last["evaluation_queries"]

    def measured_plan(self, plan: dict[str, Any] | None) -> dict[str, Any] | None:
        """A plan beside what was measured; warns if the budget was exceeded."""
        if plan is None:
            return None
        peak = max(self.budget.before, peak_bytes(self.budget.device))
        if peak > plan["budget_bytes"]:
            sizes = [f"{size / 2**20:,.0f} MiB" for size in (peak, plan["budget_bytes"])]
            self.journal.warn("peak memory {} exceeded the budget of {}".format(*sizes))
        seconds = self.state.totals.train_seconds / max(1, self.state.position.epoch)
        return {**plan, "measured": {"peak_memory_bytes": peak, "epoch_seconds": seconds}}

    def evaluate(self, run: Callable[[TileMemoryRetry], Evaluation]) -> Evaluation:
        """The result of an evaluation. Records it if fewer queries are ranked at a time now."""
        before = self.memory_retry.rows
        self.budget.begin()
        evaluation = run(self.memory_retry)
        self.budget.begin()
        if self.memory_retry.rows < before:
            self.record(
                "evaluation: memory ran out; "
                f"repeated with {self.memory_retry.rows} queries at a time"
            )
        return evaluation


def _indivisible(stepper: OptimizerStep, batch: Batch) -> str:
    """Why a step of this batch cannot be divided further."""
    if stepper.shares_encoding:
        return (
            f"Phase {stepper.phase.name} encodes the graph once for all examples of a step, which "
            "micro-batches do not divide"
        )
    if batch.group > 1:
        return (
            f"Groups of {batch.group} examples share BatchNorm statistics and are not divided "
            "(model.group)"
        )
    return "Each has one example"

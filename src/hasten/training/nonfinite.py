"""Non-finite gradients: lower the precision, or stop and name the first non-finite tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hasten.distributed.processes import Processes
from hasten.distributed.rank_log import RankLog
from hasten.errors import NonFiniteError
from hasten.objectives.base import Batch
from hasten.runs.journal import Journal
from hasten.training.step import OptimizerStep


class NonFiniteGuard:
    """Acts after ``limit`` steps in a row were skipped because of non-finite gradients."""

    def __init__(
        self,
        model: nn.Module,
        steps: Sequence[OptimizerStep],
        limit: int,
        journal: Journal | RankLog,
        processes: Processes,
    ) -> None:
        self.model, self.steps, self.limit = model, steps, limit
        self.journal, self.processes = journal, processes

    def check(self, step: OptimizerStep, batch: Batch, number: int) -> None:
        """Lower the precision of all steps if need be; NonFiniteError if none is left.

        number: of the optimizer step in the run. Synchronizes with the device.
        """
        count = int(step.bad_in_a_row)
        if count == 0:
            return
        self.journal.warn(f"step {number}: gradients were not finite; the step was left out")
        if count < self.limit:
            return
        lower = step.precision.lower()
        if lower is None:
            raise self._error(step, batch, count)
        self.journal.warn(
            f"precision {step.precision.name} does not hold: going on in {lower.name}"
        )
        for each in self.steps:
            each.precision = lower
            each.bad_in_a_row.zero_()

    def _error(self, step: OptimizerStep, batch: Batch, count: int) -> NonFiniteError:
        """The error to raise on all processes; each searches its own share of the batch."""
        found = self.processes.gather(first_bad_tensor(step, batch, self.model))
        culprits = [(rank, name) for rank, name in enumerate(found) if name is not None]
        rank, culprit = culprits[0] if culprits else (0, "the norm of all gradients together")
        where = f" of rank {rank}" if self.processes.world > 1 and culprits else ""
        error = NonFiniteError(
            f"{count} steps in a row had non-finite gradients, in {step.precision.name} too "
            f"(epoch {batch.epoch + 1}, phase {step.phase.name}, batch {batch.index}); the "
            f"first bad tensor{where} is the {culprit}. No bad step reached the weights. Try a "
            "lower --lr, --clip-norm 1 or --warmup-steps, or look at the data of that batch"
        )
        error.agreed = True
        return error


def first_bad_tensor(step: OptimizerStep, batch: Batch, model: nn.Module) -> str | None:
    """Name the first tensor that is not finite when this share is computed once more."""
    found: list[str] = []

    def check_output(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(f"output of {name or 'the model'}")

        return hook

    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {name}"
    handles = [m.register_forward_hook(check_output(name)) for name, m in model.named_modules()]
    try:
        step.zero_grad()
        losses = step.accumulate(batch)
    finally:
        for handle in handles:
            handle.remove()
    found += [f"loss term {n}" for n, v in losses.items() if not math.isfinite(float(v))]
    trained = zip(step.parameters, step.optimizer.trained, strict=True)
    grads = {id(parameter): tensor.grad for parameter, tensor in trained}
    found += [
        f"gradient of {name}"
        for name, p in model.named_parameters()
        if (grad := grads.get(id(p), p.grad)) is not None and not torch.isfinite(grad).all()
    ]
    step.zero_grad()
    return found[0] if found else None

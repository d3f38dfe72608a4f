"""Non-finite gradients: lower the precision, or stop and name the first non-finite tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hasten.distributed.processes import Processes
from hasten.errors import NonFiniteError
from hasten.objectives.base import Batch
from hasten.runs.journal import Journal, RankLog
from hasten.training.mixed_precision.pins import PinnedModules, nonfinite_module
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep


class NonFiniteGuard:
    """Acts after ``limit`` steps in a row were skipped because of non-finite gradients."""

    def __init__(
        self,
        model: nn.Module,
        steppers: Sequence[OptimizerStep],
        limit: int,
        journal: Journal | RankLog,
        processes: Processes,
        pins: PinnedModules,
    ) -> None:
        self.model, self.steppers, self.limit, self.pins = model, steppers, limit, pins
        self.journal, self.processes = journal, processes
        #: whether processes hold different weights
        self.sharded = False

    def check(self, stepper: OptimizerStep, batch: Batch, step: int) -> None:
        """Pin a module or lower the precision if need be; NonFiniteError if none is left.

        step: the number of the step in the run. Synchronizes with the device.
        """
        count = int(stepper.consecutive_nonfinite_steps)
        if count == 0:
            return
        self.journal.warn(f"step {step}: gradients were not finite; the step was left out")
        if count < self.limit:
            return
        self.check_weights()
        lower = stepper.precision.lower()
        if lower is None:
            raise self._error(stepper, batch, count)
        fault = nonfinite_module(stepper, batch, self.model)
        by_rank = self.processes.gather(None if fault is None else [fault.module, fault.to_json()])
        reports = [each for each in by_rank if each is not None]
        name, entry = reports[0] if reports else ("", {})
        reason = f" ({entry['reason']})" if entry else ""
        before = stepper.precision
        if name and name not in self.pins.found:
            self.pins.pin({name: entry})
            lower = Precision(before.name, before.device)
            action = f"{name} runs in fp32 from now on"
        else:
            action = f"precision {before.name} does not hold: going on in {lower.name}"
        self.journal.warn(
            f"{action}{reason}; epoch {batch.epoch + 1}, phase {stepper.phase.name}, batch "
            f"{batch.index}. The weights are those after step {step - count}, the last good one"
        )
        for each in self.steppers:
            if each.precision.name == before.name:
                each.precision = lower
            each.consecutive_nonfinite_steps.zero_()

    def check_weights(self) -> None:
        """NonFiniteError if an update made weights infinite or NaN. Synchronizes with the device.

        A sum needs no memory and is not finite if a weight is not: only then, all are checked.
        """
        weights = {name: p.detach() for name, p in self.model.named_parameters() if p.numel()}
        sums, bad = [p.sum().float() for p in weights.values()], []
        if sums and not bool(torch.stack(sums).isfinite().all()):
            bad = [name for name, parameter in weights.items() if not parameter.isfinite().all()]
        by_rank = self.processes.gather(bad) if self.sharded else [bad]
        bad = next((names for names in by_rank if names), [])
        if not bad:
            return
        affected = "weights"
        if not self.sharded:
            count = sum(int((~weights[name].isfinite()).sum()) for name in bad)
            affected = f"{count:,} of {sum(p.numel() for p in weights.values()):,} weights"
        error = NonFiniteError(
            f"an update made {affected} infinite or NaN, in "
            f"{', '.join(bad[:3])}{', ...' if len(bad) > 3 else ''}; they are not saved. Try a "
            "lower --lr, --clip-norm 1 or --warmup-steps; hasten resume goes on from the last "
            "checkpoint"
        )
        error.agreed = True
        raise error

    def _error(self, stepper: OptimizerStep, batch: Batch, count: int) -> NonFiniteError:
        """The error to raise on all processes; each searches its own shard of the batch."""
        first_tensors = self.processes.gather(first_nonfinite_tensor(stepper, batch, self.model))
        culprits = [(rank, name) for rank, name in enumerate(first_tensors) if name is not None]
        rank, culprit = culprits[0] if culprits else (0, "the norm of all gradients together")
        where = f" of rank {rank}" if self.processes.world > 1 and culprits else ""
        error = NonFiniteError(
            f"{count} steps in a row had non-finite gradients, in {stepper.precision.name} too "
            f"(epoch {batch.epoch + 1}, phase {stepper.phase.name}, batch {batch.index}); the "
            f"first bad tensor{where} is the {culprit}. No bad step reached the weights. Try a "
            "lower --lr, --clip-norm 1 or --warmup-steps, or look at the data of that batch"
        )
        error.agreed = True
        return error


def first_nonfinite_tensor(stepper: OptimizerStep, batch: Batch, model: nn.Module) -> str | None:
    """Name the first tensor that is not finite when this process computes its shard again."""
    culprits: list[str] = []

    def check_output(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                culprits.append(f"output of {name or 'the model'}")

        return hook

    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {name}"
    handles = [m.register_forward_hook(check_output(name)) for name, m in model.named_modules()]
    try:
        stepper.zero_grad()
        losses = stepper.accumulate(batch)
    finally:
        for handle in handles:
            handle.remove()
    culprits += [f"loss term {n}" for n, v in losses.items() if not math.isfinite(float(v))]
    # tables that the optimizer joined have one gradient, of the first of them
    trained = zip(stepper.parameters, stepper.optimizer.parameters, strict=False)
    grads = {id(parameter): tensor.grad for parameter, tensor in trained}
    culprits += [
        f"gradient of {name}"
        for name, p in model.named_parameters()
        if (grad := grads.get(id(p), p.grad)) is not None and not torch.isfinite(grad).all()
    ]
    stepper.zero_grad()
    return culprits[0] if culprits else None

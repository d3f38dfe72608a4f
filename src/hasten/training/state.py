"""Training state: what a checkpoint holds, saved and restored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from hasten.errors import CheckpointError
from hasten.objectives.base import Batch, Phase
from hasten.runs.checkpoint import Checkpoint
from hasten.training.compile import CompileReport
from hasten.training.early_stopping import EarlyStopping
from hasten.training.mixed_precision.pins import PinnedModules
from hasten.training.precision import Precision
from hasten.training.schedule import Schedule
from hasten.training.step import OptimizerStep
from hasten.training.weight_average import WeightAverage


@dataclass
class Position:
    """Progress of training.

    epoch: completed epochs; step: steps taken in the run. Of the epoch in progress: phase, index
    (steps taken in that phase) and step_of_epoch (steps taken in all its phases).
    """

    epoch: int = 0
    phase: int = 0
    index: int = 0
    step: int = 0
    step_of_epoch: int = 0


def for_sums(loss: Tensor) -> Tensor:
    """The loss of a step in float64, where sums of float32 are exact.

    So they do not depend on when losses are recorded. MPS has no float64.
    """
    return loss if loss.device.type == "mps" else loss.double()


@dataclass
class Totals:
    """Losses and seconds of the current epoch; seconds and examples of the run.

    earlier_seconds: of the run before it was resumed.
    """

    #: phase -> loss term -> sum over steps with finite gradients; the key "steps" counts them
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    epoch_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    earlier_seconds: float = 0.0
    examples: int = 0

    def add_losses(self, phase: str, losses: Mapping[str, Tensor]) -> None:
        """Add losses that were summed on the device; synchronizes with it."""
        for name, value in losses.items():
            sums = self.losses.setdefault(phase, {})
            sums[name] = sums.get(name, 0.0) + float(value)

    def mean_losses(self, *, prefixed: bool) -> dict[str, float]:
        """Mean of each loss term over the epoch's steps. prefixed: prepend the phase's name."""
        means = {}
        for phase, sums in sorted(self.losses.items()):
            prefix = f"{phase}." if prefixed else ""
            for name, value in sorted(sums.items()):
                if name != "steps":
                    means[prefix + name] = value / max(sums["steps"], 1.0)
        return means


class TrainingState:
    """Weights, optimizers, position and totals, saved to and loaded from checkpoints.

    Everything random is keyed by (seed, epoch, index), so resuming is exact at any step.
    """

    def __init__(
        self,
        model: nn.Module,
        steppers: Sequence[OptimizerStep],
        schedule: Schedule,
        early_stopping: EarlyStopping,
        average: WeightAverage | None,
    ) -> None:
        self.model, self.steppers, self.schedule = model, steppers, schedule
        self.early_stopping, self.average = early_stopping, average
        self.position, self.totals = Position(), Totals()
        self.compile_reports: list[CompileReport] = []
        #: what was done when memory ran out, see :mod:`hasten.training.memory_recovery`
        self.retreats: list[dict[str, Any]] = []
        #: modules that run in fp32 whatever the precision
        self.pins = PinnedModules(model)
        self.started = time.monotonic()

    @property
    def lr(self) -> float:
        """The learning rate of the last step that was taken."""
        return self.schedule.at(max(0, self.position.step - 1))

    def mean_losses(self) -> dict[str, float]:
        """The mean loss terms of the current epoch so far."""
        return self.totals.mean_losses(prefixed=len(self.steppers) > 1)

    def advance(self, phase: Phase, batch: Batch, steps: int = 1) -> None:
        """Count a step of this batch; -1: take it back."""
        self.totals.examples += steps * phase.examples(batch)
        self.position.index += steps
        self.position.step += steps
        self.position.step_of_epoch += steps

    def average_weights(self, stepper: OptimizerStep) -> None:
        """Update the moving average of the weights, if it is due."""
        if self.average_due:
            assert self.average is not None
            stepper.optimizer.flush()
            self.average.update()

    @property
    def average_due(self) -> bool:
        """Whether the moving average is updated after this step."""
        return self.average is not None and self.average.due(self.position.step)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Weights, optimizer states and phase states, by group and name.

        With ``training.average``, the group ``weights`` holds the averages and the group
        ``training`` the raw weights, from which training continues.
        """
        optimizers, phases = {}, {}
        weights = dict(self.model.state_dict())
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for stepper in self.steppers:
            name = stepper.phase.name
            # a row-wise optimizer returns a copy of its table with the deferred updates applied:
            # save that copy instead of the parameter
            optimizer_state, updated = stepper.optimizer.tensors()
            optimizers.update({f"{name}.{key}": value for key, value in optimizer_state.items()})
            weights.update({names[parameter]: value for parameter, value in updated.items()})
            phases.update({f"{name}.{key}": value for key, value in stepper.phase.state().items()})
        # "optimisers": the spelling of existing checkpoints
        groups = {"weights": weights, "optimisers": optimizers, "phases": phases}
        if self.average is not None:
            groups |= {"weights": self.average.of(weights), "training": weights}
        return groups

    def to_json(self) -> dict[str, Any]:
        """Everything else, as JSON values."""
        elapsed = self.totals.earlier_seconds + time.monotonic() - self.started
        # "selection", "bad", "bad_in_a_row", "compiled": the names in existing checkpoints
        return {
            "position": asdict(self.position),
            "lr": self.lr,  # TracIn weights every checkpoint by its learning rate
            "totals": {**asdict(self.totals), "earlier_seconds": elapsed},
            "selection": self.early_stopping.state(),
            "averaged": None if self.average is None else self.average.times,
            "steps": {
                stepper.phase.name: {
                    "precision": stepper.precision.state(),
                    "bad": int(stepper.nonfinite_steps),
                    "bad_in_a_row": int(stepper.consecutive_nonfinite_steps),
                }
                for stepper in self.steppers
            },
            "compiled": [report.to_json() for report in self.compile_reports],
            "retreats": self.retreats,
            "pinned": self.pins.found,
        }

    def load(self, checkpoint: Checkpoint) -> None:
        """Continue exactly where the checkpoint was written, on any number of processes.

        Raises CheckpointError if the checkpoint does not fit the model.
        """
        weights, saved = checkpoint.tensors["weights"], checkpoint.state
        try:
            self.model.load_state_dict(checkpoint.tensors.get("training", weights))
            self.position = Position(**saved["position"])
            self.totals = Totals(**saved["totals"])
            self.early_stopping.load_state(saved["selection"])
            if self.average is not None:
                self.average.load(weights, saved["averaged"])
            for stepper in self.steppers:
                _load_stepper(stepper, checkpoint)
            self.compile_reports = [CompileReport(**report) for report in saved["compiled"]]
            self.retreats = list(saved.get("retreats", ()))
            self.pins.pin(saved.get("pinned", {}))
        except RuntimeError as error:
            raise CheckpointError(
                f"{checkpoint.path}: the weights do not fit the model: {error}"
            ) from error
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"{checkpoint.path}: damaged, or of another model: {error}"
            ) from error

    def load_phases(self, checkpoint: Checkpoint) -> None:
        """Load only the state of the phases."""
        for stepper in self.steppers:
            stepper.phase.load_state(phase_state(checkpoint, stepper.phase.name))


def _load_stepper(stepper: OptimizerStep, checkpoint: Checkpoint) -> None:
    name, tensors = stepper.phase.name, checkpoint.tensors
    prefix = f"{name}."
    # keys are PHASE.NUMBER.FIELD
    phase_tensors = {k: v for k, v in tensors["optimisers"].items() if k.rsplit(".", 2)[0] == name}
    stepper.optimizer.load(
        {key.removeprefix(prefix): value for key, value in phase_tensors.items()}
    )
    stepper.phase.load_state(phase_state(checkpoint, name))
    saved = checkpoint.state["steps"][name]
    stepper.precision = Precision.from_state(saved["precision"], stepper.device)
    stepper.nonfinite_steps.fill_(saved["bad"])
    stepper.consecutive_nonfinite_steps.fill_(saved["bad_in_a_row"])


def phase_state(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """The state of one phase in a checkpoint."""
    prefix = f"{name}."
    tensors = checkpoint.tensors.get("phases", {})
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

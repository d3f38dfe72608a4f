"""What a checkpoint holds of a trainer, and the trainer put back to where it was written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hasten.errors import CheckpointError
from hasten.runs.checkpoint import Checkpoint
from hasten.training.compile import CompileReport, compile_step, forget_compiled
from hasten.training.precision import Precision
from hasten.training.step import OptimiserStep

if TYPE_CHECKING:
    from hasten.training.trainer import Trainer


@dataclass
class Position:
    """How far a run is: complete epochs, and steps into the phases of the next one."""

    epoch: int = 0
    phase: int = 0
    index: int = 0
    step: int = 0
    step_of_epoch: int = 0


@dataclass
class Totals:
    """Sums of the running epoch (reset each epoch) and of the run (kept)."""

    #: phase -> loss term -> sum over the steps that were taken; "steps" counts those
    losses: dict[str, dict[str, float]] = field(default_factory=dict)
    epoch_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    earlier_seconds: float = 0.0
    examples: int = 0


def trainer_tensors(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """Weights, optimiser state and what phases keep, by group and name.

    Where weights are averaged, the average is what the run has come to, and ``training`` holds
    those that training goes on from.
    """
    optimisers, phases = {}, {}
    weights = dict(trainer.model.state_dict())
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    for step in trainer.steps:
        name = step.phase.name
        held, settled = step.tensors()
        optimisers.update({f"{name}.{key}": value for key, value in held.items()})
        weights.update({names[parameter]: value for parameter, value in settled.items()})
        phases.update({f"{name}.{key}": value for key, value in step.phase.state().items()})
    groups = {"weights": weights, "optimisers": optimisers, "phases": phases}
    if trainer.average is not None:
        groups |= {"weights": trainer.average.of(weights), "training": weights}
    return groups


def trainer_state(trainer: Trainer) -> dict[str, Any]:
    """Everything else, as JSON values."""
    return {
        "position": asdict(trainer.position),
        # of the last step that was taken; influence weights checkpoints by it
        "lr": trainer.schedule.at(max(0, trainer.position.step - 1)),
        "totals": {**asdict(trainer.totals), "earlier_seconds": trainer.elapsed},
        "selection": trainer.selection.state(),
        "averaged": None if trainer.average is None else trainer.average.times,
        "steps": {
            step.phase.name: {
                "precision": step.precision.state(),
                "bad": int(step.bad),
                "bad_in_a_row": int(step.bad_in_a_row),
            }
            for step in trainer.steps
        },
        "compiled": [report.to_json() for report in trainer.compiled],
    }


def restore_trainer(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Go on exactly where the checkpoint was written, in any number of processes."""
    weights = checkpoint.tensors["weights"]
    try:
        trainer.model.load_state_dict(checkpoint.tensors.get("training", weights))
    except RuntimeError as error:
        raise CheckpointError(
            f"{checkpoint.path}: the weights do not fit the model: {error}"
        ) from error
    state = checkpoint.state
    trainer.position = Position(**state["position"])
    trainer.totals = Totals(**state["totals"])
    trainer.selection.load_state(state["selection"])
    if trainer.average is not None:
        trainer.average.load(weights, state["averaged"])
    for step in trainer.steps:
        _restore_step(step, checkpoint)
    trainer.compiled = [CompileReport(**report) for report in state["compiled"]]
    if any(report.in_effect for report in trainer.compiled):
        forget_compiled()
    for step, report in zip(trainer.steps, trainer.compiled, strict=False):
        if report.in_effect:
            compile_step(step, forced(report.requested), trainer.config.seed)


def _restore_step(step: OptimiserStep, checkpoint: Checkpoint) -> None:
    name, tensors = step.phase.name, checkpoint.tensors
    prefix = f"{name}."
    held = {k: v for k, v in tensors["optimisers"].items() if k.rsplit(".", 2)[0] == name}
    step.load({key.removeprefix(prefix): value for key, value in held.items()})
    step.phase.load_state(phase_state(checkpoint, name))
    saved = checkpoint.state["steps"][name]
    step.precision = Precision.from_state(saved["precision"], step.device)
    step.bad.fill_(saved["bad"])
    step.bad_in_a_row.fill_(saved["bad_in_a_row"])


def phase_state(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """What a phase kept between epochs, from a checkpoint."""
    prefix = f"{name}."
    tensors = checkpoint.tensors.get("phases", {})
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def forced(mode: str) -> str:
    """The mode that compiles without measuring: a decision that was taken is kept."""
    return "default" if mode == "auto" else mode

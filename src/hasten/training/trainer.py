"""The loop: epochs, phases, steps; evaluation, selection, checkpoints; stopping and resuming.

Everything random is keyed by (seed, epoch, index), so the state of a run is its weights, its
optimisers, its phases' own state and its position: resume is exact at any step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hasten.config import RunConfig
from hasten.errors import CheckpointError, Interrupted, NonFiniteError
from hasten.evaluation.ranker import Evaluation
from hasten.training.checkpoint import (
    Checkpoint,
    checkpoint_name,
    prune_checkpoints,
    write_checkpoint,
)
from hasten.training.compile import CompileReport, compile_step, forget_compiled
from hasten.training.environment import peak_memory_bytes
from hasten.training.journal import Journal
from hasten.training.phase import Batch, Phase
from hasten.training.precision import Precision, resolve_precision
from hasten.training.progress import Progress
from hasten.training.run_folder import RunFolder
from hasten.training.schedule import Schedule
from hasten.training.selection import Selection
from hasten.training.signals import StopSignals
from hasten.training.step import OptimiserStep, Share, first_bad_tensor

#: steps between looks at device values (a look is free on the CPU, a synchronisation elsewhere)
LOOK_EVERY = {"cpu": 1}
LOOK_EVERY_DEVICE = 25


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


class Trainer:
    """Trains a model's phases in a run folder."""

    def __init__(
        self,
        model: nn.Module,
        phases: Sequence[Phase],
        config: RunConfig,
        *,
        folder: RunFolder,
        journal: Journal,
        progress: Progress,
        signals: StopSignals,
        evaluate: Callable[[], Evaluation] | None,
        device: torch.device,
    ) -> None:
        self.model, self.phases, self.config = model, list(phases), config
        self.folder, self.journal, self.progress = folder, journal, progress
        self.signals, self.evaluate, self.device = signals, evaluate, device
        precision = Precision(resolve_precision(config.training.precision, device), device)
        self.steps = [
            OptimiserStep(phase, number, config.training, precision, Share(), device)
            for number, phase in enumerate(self.phases)
        ]
        self.steps_per_epoch = sum(phase.steps() for phase in self.phases)
        self.schedule = Schedule.of(config.training, self.steps_per_epoch)
        self.selection = Selection(config.evaluation.metrics[0], config.training.patience)
        self.position, self.totals = Position(), Totals()
        self.compiled: list[CompileReport] = []
        #: a model without phases is fitted, not trained: one round of evaluation and saving
        self.epochs = config.training.epochs if self.phases else 1
        self.started = self.saved = time.monotonic()
        self.clock = time.perf_counter()
        self.look_every = LOOK_EVERY.get(device.type, LOOK_EVERY_DEVICE)

    def run(self) -> str:
        """Train until the epochs are done, patience or time is out; returns which it was."""
        self.started = self.saved = time.monotonic()
        if not self.compiled:
            self.compile()
        self.model.train()
        while self.position.epoch < self.epochs:
            if self.selection.exhausted:
                return f"no improvement for {self.config.training.patience}"
            if self.epoch():
                return "max_time"
        return "epochs"

    def compile(self) -> None:
        """Compile every phase's hot function, as configured; the decision stays with the run."""
        mode = self.config.training.compile
        if mode != "off":
            forget_compiled()
            self.compiled = [compile_step(step, mode, self.config.seed) for step in self.steps]
            for report in self.compiled:
                self.journal.train(f"compile: {report.to_json()}")

    def epoch(self) -> bool:
        """One epoch from the current position; True if time ran out within it."""
        number = self.position.epoch
        self.progress.start_epoch(number + 1, self.steps_per_epoch)
        while self.position.phase < len(self.phases):
            step = self.steps[self.position.phase]
            if self.position.index == 0:
                step.phase.start_epoch(self.config.seed, number)
            if self.phase_steps(step):
                return True
            self.position.phase, self.position.index = self.position.phase + 1, 0
        self.finish_epoch()
        return False

    def phase_steps(self, step: OptimiserStep) -> bool:
        """The remaining steps of a phase; True if time ran out."""
        position = self.position
        losses: dict[str, Tensor] = {}
        self.clock = time.perf_counter()
        while position.index < step.phase.steps():
            batch = step.phase.plan(self.config.seed, position.epoch, position.index)
            for name, value in step(batch, self.schedule.at(position.step)).items():
                losses[name] = losses[name] + value if name in losses else value
            self.totals.examples += step.phase.examples(batch)
            position.index += 1
            position.step += 1
            position.step_of_epoch += 1
            shown = None
            if position.step % self.look_every == 0:
                self.settle(step.phase, losses)
                self.guard(step, batch)
                shown = sum(self.mean_losses().values())
            self.progress.advance(shown)
            late = self.late
            if late or self.signals.received is not None or self.due:
                self.settle(step.phase, losses)
                self.save()
                self.raise_if_interrupted()
                self.clock = time.perf_counter()
            if late:
                return True
        self.settle(step.phase, losses)
        return False

    def settle(self, phase: Phase, losses: dict[str, Tensor]) -> None:
        """Bring the losses summed on the device, and the time they took, into the totals."""
        for name, value in losses.items():
            sums = self.totals.losses.setdefault(phase.name, {})
            sums[name] = sums.get(name, 0.0) + float(value)
        losses.clear()
        now = time.perf_counter()
        self.totals.epoch_seconds += now - self.clock
        self.totals.train_seconds += now - self.clock
        self.clock = now

    def mean_losses(self) -> dict[str, float]:
        """The epoch's loss terms so far, each a mean over the steps that were taken."""
        means = {}
        for phase, sums in sorted(self.totals.losses.items()):
            prefix = f"{phase}." if len(self.phases) > 1 else ""
            for name, value in sorted(sums.items()):
                if name != "steps":
                    means[prefix + name] = value / max(sums["steps"], 1.0)
        return means

    @property
    def elapsed(self) -> float:
        """Seconds spent on this run, those before it was resumed included."""
        return self.totals.earlier_seconds + time.monotonic() - self.started

    @property
    def late(self) -> bool:
        """Whether the time given to this run is over."""
        limit = self.config.training.max_time
        return limit is not None and time.monotonic() - self.started >= limit

    @property
    def due(self) -> bool:
        """Whether the configuration asks for a checkpoint in mid-epoch, now."""
        options = self.config.checkpoint
        by_steps = options.every_steps and self.position.step % options.every_steps == 0
        minutes = (time.monotonic() - self.saved) / 60
        return bool(by_steps or (options.every_minutes and minutes >= options.every_minutes))

    def raise_if_interrupted(self) -> None:
        number = self.signals.received
        if number is not None:
            raise Interrupted(
                f"interrupted by signal {number} after step {self.position.step}; everything is "
                f"saved: go on with  hasten resume {self.folder.path}",
                number,
            )

    def guard(self, step: OptimiserStep, batch: Batch) -> None:
        """After too many bad steps in a row: lower the precision, or stop and name the culprit."""
        count = int(step.bad_in_a_row)
        if count == 0:
            return
        self.journal.warn(
            f"step {self.position.step}: gradients were not finite; the step was left out"
        )
        if count < self.config.training.bad_steps:
            return
        lower = step.precision.lower()
        if lower is None:
            culprit = first_bad_tensor(step, batch, self.model)
            raise NonFiniteError(
                f"{count} steps in a row had non-finite gradients, in {step.precision.name} too "
                f"(epoch {batch.epoch + 1}, phase {step.phase.name}, batch {batch.index}); the "
                f"first bad tensor is the {culprit}. No bad step reached the weights. Try a lower "
                "--lr, --clip-norm 1 or --warmup-steps, or look at the data of that batch"
            )
        self.journal.warn(
            f"precision {step.precision.name} does not hold: going on in {lower.name}"
        )
        for each in self.steps:
            each.precision = lower
            each.bad_in_a_row.zero_()

    def finish_epoch(self) -> None:
        """Record, evaluate and select if due, save if due."""
        position, totals = self.position, self.totals
        self.raise_if_interrupted_in_evaluation()
        number = position.epoch + 1
        values = self.mean_losses()
        last = number >= self.epochs
        best = False
        evaluation: Evaluation | None = None
        if self.evaluate is not None and (last or number % self.config.evaluation.every == 0):
            evaluation = self.evaluate()
            self.raise_if_interrupted_in_evaluation()
            self.model.train()
            totals.evaluate_seconds += evaluation.seconds
            best = self.selection.update(evaluation.values[self.selection.metric], number)
        position.epoch, position.phase, position.index, position.step_of_epoch = number, 0, 0, 0
        self.report(number, values, evaluation, best)
        totals.losses, totals.epoch_seconds = {}, 0.0
        if best:
            self.write(self.folder.best)
        if last or number % self.config.checkpoint.every == 0:
            self.save()

    def raise_if_interrupted_in_evaluation(self) -> None:
        """The position still says: all steps done, not evaluated; resuming evaluates again."""
        if self.signals.received is not None:
            self.save()
            self.raise_if_interrupted()

    def report(
        self, number: int, losses: Mapping[str, float], evaluation: Evaluation | None, best: bool
    ) -> None:
        """The records and the log line of an epoch."""
        totals, step = self.totals, self.position.step
        rate = self.examples_per_epoch() / max(totals.epoch_seconds, 1e-9)
        lr = self.schedule.at(max(0, step - 1))
        seconds = {"seconds": round(totals.epoch_seconds, 4), "examples_per_second": round(rate, 1)}
        self.journal.record("train", number, step, {**losses, "lr": lr, **seconds})
        text = " ".join(f"{name} {value:.4f}" for name, value in losses.items())
        memory = peak_memory_bytes() / 2**20
        line = f"epoch {number}  {text}  {totals.epoch_seconds:.1f} s  {rate:,.0f} examples/s"
        line += f"  {memory:,.0f} MB"
        if evaluation is not None:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in evaluation.values.items())
            shown += "  best so far" if best else ""
            self.journal.record("valid", number, step, evaluation.values)
            self.journal.valid(f"epoch {number}  {shown}")
            self.progress.note(**{self.selection.metric: evaluation.values[self.selection.metric]})
            line += f"  valid {shown}"
        self.progress.note(examples_per_second=rate)
        self.journal.train(line)

    def examples_per_epoch(self) -> int:
        return self.totals.examples // max(1, self.position.epoch)

    def save(self) -> None:
        """A checkpoint of the current position; older ones beyond the retention are removed."""
        position = self.position
        name = checkpoint_name(position.epoch, position.step_of_epoch)
        self.write(self.folder.checkpoints / name)
        prune_checkpoints(self.folder.checkpoints, self.config.checkpoint.keep)
        self.saved = time.monotonic()

    def write(self, folder: Any) -> None:
        optimisers, phases = {}, {}
        for step in self.steps:
            name = step.phase.name
            for index, parameter in enumerate(step.parameters):
                for key, value in step.optimiser.state[parameter].items():
                    optimisers[f"{name}.{index}.{key}"] = value
            phases.update({f"{name}.{key}": value for key, value in step.phase.state().items()})
        tensors = {
            "weights": dict(self.model.state_dict()),
            "optimisers": optimisers,
            "phases": phases,
        }
        write_checkpoint(folder, tensors, self.state())

    def state(self) -> dict[str, Any]:
        return {
            "position": asdict(self.position),
            "totals": {**asdict(self.totals), "earlier_seconds": self.elapsed},
            "selection": self.selection.state(),
            "steps": {
                step.phase.name: {
                    "precision": step.precision.state(),
                    "bad": int(step.bad),
                    "bad_in_a_row": int(step.bad_in_a_row),
                }
                for step in self.steps
            },
            "compiled": [report.to_json() for report in self.compiled],
        }

    def finish(self) -> float:
        """Write ``final``, and ``best`` if nothing was selected; seconds of earlier parts."""
        self.write(self.folder.final)
        if self.selection.best is None:
            self.selection.best_epoch = self.position.epoch
            self.write(self.folder.best)
        return self.totals.earlier_seconds

    def load_phase_states(self, checkpoint: Checkpoint) -> None:
        for step in self.steps:
            step.phase.load_state(phase_state(checkpoint, step.phase.name))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on exactly where the checkpoint was written."""
        try:
            self.model.load_state_dict(checkpoint.tensors["weights"])
        except RuntimeError as error:
            raise CheckpointError(
                f"{checkpoint.path}: the weights do not fit the model: {error}"
            ) from error
        state = checkpoint.state
        self.position, self.totals = Position(**state["position"]), Totals(**state["totals"])
        self.selection.load_state(state["selection"])
        for step in self.steps:
            self.restore_step(step, checkpoint)
        self.compiled = [CompileReport(**report) for report in state["compiled"]]
        if any(report.in_effect for report in self.compiled):
            forget_compiled()
        for step, report in zip(self.steps, self.compiled, strict=False):
            if report.in_effect:
                compile_step(step, _forced(report.requested), self.config.seed)

    def restore_step(self, step: OptimiserStep, checkpoint: Checkpoint) -> None:
        name, tensors = step.phase.name, checkpoint.tensors
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors["optimisers"].items():
            phase, index, field_name = key.rsplit(".", 2)
            if phase == name:
                state.setdefault(int(index), {})[field_name] = value
        loaded = step.optimiser.state_dict()
        loaded["state"] = state
        step.optimiser.load_state_dict(loaded)
        step.phase.load_state(phase_state(checkpoint, name))
        saved = checkpoint.state["steps"][name]
        step.precision = Precision.from_state(saved["precision"], self.device)
        step.bad.fill_(saved["bad"])
        step.bad_in_a_row.fill_(saved["bad_in_a_row"])


def phase_state(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """What a phase kept between epochs, from a checkpoint."""
    prefix = f"{name}."
    tensors = checkpoint.tensors.get("phases", {})
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _forced(mode: str) -> str:
    """The mode that compiles without measuring: a resumed run keeps the decision taken."""
    return "default" if mode == "auto" else mode

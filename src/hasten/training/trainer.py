"""The loop: epochs, phases, steps; evaluation, selection, checkpoints; stopping and resuming.

Everything random is keyed by (seed, epoch, index), so the state of a run is its weights, its
optimisers, its phases' own state and its position: resume is exact at any step.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from hasten.config import RunConfig
from hasten.distributed.processes import Processes
from hasten.distributed.rank_log import RankLog
from hasten.distributed.replicas import require_same_sums
from hasten.errors import Interrupted, NonFiniteError
from hasten.evaluation.ranker import Evaluation
from hasten.objectives.base import Batch, Phase
from hasten.runs.checkpoint import (
    Checkpoint,
    checkpoint_name,
    prune_checkpoints,
    write_checkpoint,
)
from hasten.runs.environment import peak_memory_bytes
from hasten.runs.journal import Journal
from hasten.runs.progress import Progress
from hasten.runs.run_folder import RunFolder
from hasten.training.compile import CompileReport, compile_step, forget_compiled
from hasten.training.early_stopping import Selection
from hasten.training.memory import release_memory
from hasten.training.precision import Precision, resolve_precision
from hasten.training.schedule import Schedule
from hasten.training.signals import StopSignals
from hasten.training.state import (
    Position,
    Totals,
    forced,
    phase_state,
    restore_trainer,
    trainer_state,
    trainer_tensors,
)
from hasten.training.step import (
    NO_WISHES,
    OptimiserStep,
    Share,
    Wishes,
    first_bad_tensor,
)
from hasten.training.weight_average import WeightAverage

#: steps between looks at device values (a look is free on the CPU, a synchronisation elsewhere)
LOOK_EVERY = {"cpu": 1}
LOOK_EVERY_DEVICE = 25


class Trainer:
    """Trains a model's phases in a run folder, which only the first of several processes writes."""

    def __init__(
        self,
        model: nn.Module,
        phases: Sequence[Phase],
        config: RunConfig,
        *,
        folder: RunFolder,
        journal: Journal | RankLog,
        progress: Progress,
        signals: StopSignals,
        evaluate: Callable[[], Evaluation] | None,
        processes: Processes,
    ) -> None:
        self.model, self.phases, self.config = model, list(phases), config
        self.folder, self.journal, self.progress = folder, journal, progress
        self.signals, self.evaluate, self.processes = signals, evaluate, processes
        self.device = device = processes.device
        precision = Precision(resolve_precision(config.training.precision, device), device)
        share = Share(processes.rank, processes.world)
        self.steps = [
            OptimiserStep(phase, number, config.training, precision, share, device, processes)
            for number, phase in enumerate(self.phases)
        ]
        self.steps_per_epoch = sum(phase.steps() for phase in self.phases)
        self.schedule = Schedule.of(config.training, self.steps_per_epoch)
        #: the average by which the model is judged and saved, where one is asked for
        self.average: WeightAverage | None = None
        if config.training.average is not None and self.phases:
            self.average = WeightAverage(model, config.training.average, self.steps_per_epoch)
        self.selection = Selection(config.evaluation.metrics[0], config.training.patience)
        self.position, self.totals = Position(), Totals()
        self.compiled: list[CompileReport] = []
        #: a model without phases is fitted, not trained: one round of evaluation and saving
        self.epochs = config.training.epochs if self.phases else 1
        self.started = self.saved = time.monotonic()
        self.clock = time.perf_counter()
        #: the signal by which all processes have agreed to stop, or None
        self.stop: int | None = None
        self.look_every = LOOK_EVERY.get(device.type, LOOK_EVERY_DEVICE)
        self.cleanup_every = config.training.cleanup_every

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
        if mode == "off":
            return
        self.processes.place = "compiling"
        forget_compiled()
        for step in self.steps:

            def decide(step: OptimiserStep = step) -> dict[str, object]:
                return compile_step(step, mode, self.config.seed).to_json()

            # the first measures, the others do as it does
            report = CompileReport(**self.processes.from_first(decide, "compiling"))
            if report.in_effect and not self.processes.first:
                compile_step(step, forced(mode), self.config.seed)
            self.compiled.append(report)
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
            self.clock = time.perf_counter()
            step.phase.end_epoch(self.config.seed, number)
            self.settle(step.phase, {})
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
            self.processes.place = f"step {position.step + 1}, phase {step.phase.name}"
            wishes = self.wishes() if step.exchange else NO_WISHES
            for name, value in step(batch, self.schedule.at(position.step), wishes).items():
                losses[name] = losses[name] + value if name in losses else value
            self.totals.examples += step.phase.examples(batch)
            position.index += 1
            position.step += 1
            position.step_of_epoch += 1
            if self.average is not None and self.average.due(position.step):
                step.settle()
                self.average.take()
            if self.cleanup_every and position.step % self.cleanup_every == 0:
                release_memory(self.device)
            shown, look = None, position.step % self.look_every == 0
            if look:
                self.settle(step.phase, losses)
                self.guard(step, batch)
                shown = sum(self.mean_losses().values())
            self.progress.advance(shown)
            late, due = self.decide(step, look)
            if late or due or self.stop is not None:
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

    def wishes(self) -> Wishes:
        """What this process wishes for; of time only the first process's clock counts."""
        received, options, first = self.signals.received, self.config, self.processes.first
        limit, minutes = options.training.max_time, options.checkpoint.every_minutes
        now = time.monotonic()
        late = first and limit is not None and now - self.started >= limit
        due = first and minutes is not None and now - self.saved >= minutes * 60
        return (
            float(received == signal.SIGINT),
            float(received == signal.SIGTERM),
            float(late),
            float(due),
        )

    def decide(self, step: OptimiserStep, look: bool) -> tuple[bool, bool]:
        """Whether time is over and whether to save, after this step, as all processes wish."""
        wanted: Sequence[float] = NO_WISHES
        if step.wishes is None:
            wanted = self.wishes()
        elif look:
            wanted = step.wishes.tolist()
        self.heed(wanted)
        every = self.config.checkpoint.every_steps
        due = wanted[3] > 0 or (every is not None and self.position.step % every == 0)
        return wanted[2] > 0, due

    def heed(self, wanted: Sequence[float]) -> None:
        """Take note of a signal that any process has received."""
        if self.stop is None and max(wanted[:2]) > 0:
            self.stop = int(signal.SIGTERM if wanted[1] else signal.SIGINT)

    def agree_to_stop(self) -> None:
        """Let all processes know of a signal that came outside of the steps."""
        wanted = torch.tensor(self.wishes())
        self.heed(self.processes.sum_(wanted, "asking for signals").tolist())

    def raise_if_interrupted(self) -> None:
        if self.stop is not None:
            raise Interrupted(
                f"interrupted by signal {self.stop} after step {self.position.step}; everything is "
                f"saved: go on with  hasten resume {self.folder.path}",
                self.stop,
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
            raise self.not_finite(step, batch, count)
        self.journal.warn(
            f"precision {step.precision.name} does not hold: going on in {lower.name}"
        )
        for each in self.steps:
            each.precision = lower
            each.bad_in_a_row.zero_()

    def not_finite(self, step: OptimiserStep, batch: Batch, count: int) -> NonFiniteError:
        """What to say when no precision holds; every process looks through its own share."""
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

    def finish_epoch(self) -> None:
        """Record, evaluate and select if due, save if due."""
        position, totals = self.position, self.totals
        number = position.epoch + 1
        require_same_sums(self.processes, self.model, f"after epoch {number}")
        self.raise_if_interrupted_in_evaluation()
        values = self.mean_losses()
        last = number >= self.epochs
        best = False
        evaluation: Evaluation | None = None
        if self.evaluate is not None and (last or number % self.config.evaluation.every == 0):
            self.processes.place = f"the evaluation after epoch {number}"
            with nullcontext() if self.average is None else self.average.in_place():
                evaluation = self.evaluate()
            self.raise_if_interrupted_in_evaluation()
            self.model.train()
            totals.evaluate_seconds += evaluation.seconds
            best = self.selection.update(evaluation.values[self.selection.metric], number)
            self.record_diagnostics(number, evaluation)
        position.epoch, position.phase, position.index, position.step_of_epoch = number, 0, 0, 0
        self.report(number, values, evaluation, best)
        totals.losses, totals.epoch_seconds = {}, 0.0
        if best:
            self.write(self.folder.best)
        if last or number % self.config.checkpoint.every == 0:
            self.save()

    def record_diagnostics(self, number: int, evaluation: Evaluation) -> None:
        """Record the diagnostics of the embeddings, and warn of what they show."""
        health = evaluation.diagnostics
        if health is None:
            return
        self.journal.record("health", number, self.position.step, health.figures)
        if health.warning is not None:
            self.journal.warn(f"epoch {number}: {health.warning}")

    def raise_if_interrupted_in_evaluation(self) -> None:
        """The position still says: all steps done, not evaluated; resuming evaluates again."""
        self.agree_to_stop()
        if self.stop is not None:
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
        if self.processes.first:
            prune_checkpoints(self.folder.checkpoints, self.config.checkpoint.keep)
        self.saved = time.monotonic()

    def write(self, folder: Path) -> None:
        """Write a checkpoint; the first process does, of what all of them hold."""
        self.processes.place = f"saving {folder.name}"
        tensors = trainer_tensors(self)
        if self.processes.first:
            write_checkpoint(folder, tensors, trainer_state(self))

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
        restore_trainer(self, checkpoint)

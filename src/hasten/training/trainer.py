"""The training loop: epochs, phases, steps; evaluation, selection, checkpoints, stopping."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from torch import Tensor, nn

from hasten.config import RunConfig
from hasten.distributed.processes import Processes
from hasten.distributed.rank_log import RankLog
from hasten.distributed.replicas import require_same_checksums
from hasten.evaluation.ranker import Evaluation
from hasten.objectives.base import Phase
from hasten.runs.checkpoint import (
    Checkpoint,
    checkpoint_name,
    prune_checkpoints,
    write_checkpoint,
)
from hasten.runs.journal import Journal
from hasten.runs.progress import Progress
from hasten.runs.run_folder import RunFolder
from hasten.training.compile import CompileReport, compile_step, forced, forget_compiled
from hasten.training.early_stopping import Selection
from hasten.training.epoch_report import EpochReport
from hasten.training.memory import release_memory
from hasten.training.nonfinite import NonFiniteGuard
from hasten.training.precision import Precision, resolve_precision
from hasten.training.schedule import Schedule
from hasten.training.signals import StopSignals
from hasten.training.state import TrainingState
from hasten.training.step import OptimizerStep, Share
from hasten.training.stop_requests import Requests, StopRequests
from hasten.training.weight_average import WeightAverage

#: steps between host synchronizations, on a CPU (where they are free) and on other devices
_SYNC_INTERVAL_CPU, _SYNC_INTERVAL = 1, 25


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
        self.evaluate, self.processes = evaluate, processes
        options, self.device = config.training, processes.device
        precision = Precision(resolve_precision(options.precision, self.device), self.device)
        share = Share(processes.rank, processes.world)
        self.steps = [
            OptimizerStep(phase, number, options, precision, share, self.device, processes)
            for number, phase in enumerate(self.phases)
        ]
        self.steps_per_epoch = sum(phase.steps() for phase in self.phases)
        average: WeightAverage | None = None
        if options.average is not None and self.phases:
            average = WeightAverage(model, options.average, self.steps_per_epoch)
        self.state = TrainingState(
            model,
            self.steps,
            Schedule.of(options, self.steps_per_epoch),
            Selection(config.evaluation.metrics[0], options.patience),
            average,
        )
        self.requests = StopRequests(config, signals, processes)
        self.guard = NonFiniteGuard(model, self.steps, options.bad_steps, journal, processes)
        #: a model without phases is fitted, not trained: one round of evaluation and saving
        self.epochs = options.epochs if self.phases else 1
        self.clock = time.perf_counter()
        on_cpu = self.device.type == "cpu"
        self.sync_interval = _SYNC_INTERVAL_CPU if on_cpu else _SYNC_INTERVAL
        self.cleanup_every = options.cleanup_every

    def run(self) -> str:
        """Train until the epochs are done, patience or time is out; returns which it was."""
        self.requests.start()
        self.state.started = self.requests.started
        if not self.state.compiled:
            self.compile()
        self.model.train()
        while self.state.position.epoch < self.epochs:
            if self.state.selection.exhausted:
                return f"no improvement for {self.config.training.patience}"
            if self.epoch():
                return "max_time"
        return "epochs"

    def compile(self) -> None:
        """Compile every phase's hot function, as configured; a resumed run keeps the decision."""
        mode = self.config.training.compile
        if mode == "off":
            return
        self.processes.activity = "compiling"
        forget_compiled()
        for step in self.steps:

            def decide(step: OptimizerStep = step) -> dict[str, object]:
                return compile_step(step, mode, self.config.seed).to_json()

            # the first process measures, the others follow
            report = CompileReport(**self.processes.run_on_rank0(decide, "compiling"))
            if report.in_effect and not self.processes.is_rank0:
                compile_step(step, forced(mode), self.config.seed)
            self.state.compiled.append(report)
            self.journal.train(f"compile: {report.to_json()}")

    def epoch(self) -> bool:
        """One epoch from the current position; True if time ran out within it."""
        position = self.state.position
        number = position.epoch
        self.progress.start_epoch(number + 1, self.steps_per_epoch)
        while position.phase < len(self.phases):
            step = self.steps[position.phase]
            if position.index == 0:
                step.phase.start_epoch(self.config.seed, number)
            if self.phase_steps(step):
                return True
            self.clock = time.perf_counter()
            step.phase.end_epoch(self.config.seed, number)
            self.record_losses(step.phase, {})
            position.phase, position.index = position.phase + 1, 0
        self.finish_epoch()
        return False

    def phase_steps(self, step: OptimizerStep) -> bool:
        """The remaining steps of a phase; True if time ran out."""
        state, position = self.state, self.state.position
        losses: dict[str, Tensor] = {}
        self.clock = time.perf_counter()
        while position.index < step.phase.steps():
            batch = step.phase.plan(self.config.seed, position.epoch, position.index)
            self.processes.activity = f"step {position.step + 1}, phase {step.phase.name}"
            requests = self.requests.collect() if step.all_reduce else Requests()
            for name, value in step(batch, state.schedule.at(position.step), requests).items():
                losses[name] = losses[name] + value if name in losses else value
            state.totals.examples += step.phase.examples(batch)
            position.index += 1
            position.step += 1
            position.step_of_epoch += 1
            if state.average is not None and state.average.due(position.step):
                step.optimizer.flush()
                state.average.take()
            if self.cleanup_every and position.step % self.cleanup_every == 0:
                release_memory(self.device)
            shown, sync = None, position.step % self.sync_interval == 0
            if sync:
                self.record_losses(step.phase, losses)
                self.guard.check(step, batch, position.step)
                shown = sum(self.mean_losses().values())
            self.progress.advance(shown)
            late, due = self.apply_requests(step, sync)
            if late or due or self.requests.stop is not None:
                self.record_losses(step.phase, losses)
                self.save()
                self.raise_if_stopped()
                self.clock = time.perf_counter()
            if late:
                return True
        self.record_losses(step.phase, losses)
        return False

    def record_losses(self, phase: Phase, losses: dict[str, Tensor]) -> None:
        """Move the losses summed on the device, and the time they took, to the totals."""
        totals = self.state.totals
        totals.add_losses(phase.name, losses)
        losses.clear()
        now = time.perf_counter()
        totals.epoch_seconds += now - self.clock
        totals.train_seconds += now - self.clock
        self.clock = now

    def mean_losses(self) -> dict[str, float]:
        """The mean loss terms of the current epoch so far."""
        return self.state.totals.mean_losses(prefixed=len(self.phases) > 1)

    def apply_requests(self, step: OptimizerStep, sync: bool) -> tuple[bool, bool]:
        """Whether time is out and whether to save after this step, on all processes alike."""
        summed: Sequence[float] = Requests()
        if step.requests is None:
            summed = self.requests.collect()
        elif sync:
            summed = step.requests.tolist()
        requests = self.requests.apply(summed)
        every = self.config.checkpoint.every_steps
        due = every is not None and self.state.position.step % every == 0
        return requests.time_out > 0, requests.save > 0 or due

    def finish_epoch(self) -> None:
        """Record, evaluate and select if due, save if due."""
        state, position, totals = self.state, self.state.position, self.state.totals
        number = position.epoch + 1
        require_same_checksums(self.processes, self.model, f"after epoch {number}")
        self.save_if_stopped()
        losses = self.mean_losses()
        last = number >= self.epochs
        best = False
        evaluation: Evaluation | None = None
        if self.evaluate is not None and (last or number % self.config.evaluation.every == 0):
            self.processes.activity = f"the evaluation after epoch {number}"
            with nullcontext() if state.average is None else state.average.in_place():
                evaluation = self.evaluate()
            self.save_if_stopped()
            self.model.train()
            totals.evaluate_seconds += evaluation.seconds
            best = state.selection.update(evaluation.values[state.selection.metric], number)
        position.epoch, position.phase, position.index, position.step_of_epoch = number, 0, 0, 0
        rate = totals.examples // number / max(totals.epoch_seconds, 1e-9)
        report = EpochReport(
            number, position.step, losses, state.lr, totals.epoch_seconds, rate, evaluation, best
        )
        report.write(self.journal, self.progress, state.selection.metric)
        totals.losses, totals.epoch_seconds = {}, 0.0
        if best:
            self.write(self.folder.best)
        if last or number % self.config.checkpoint.every == 0:
            self.save()

    def save_if_stopped(self) -> None:
        """Stop between steps, on all processes; a resumed run evaluates again."""
        self.requests.synchronize_stop()
        if self.requests.stop is not None:
            self.save()
            self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        """Raise Interrupted if the processes have agreed to stop."""
        self.requests.raise_if_stopped(self.state.position.step, self.folder.path)

    def save(self) -> None:
        """Write a checkpoint of the current position; remove older ones beyond the retention."""
        position = self.state.position
        name = checkpoint_name(position.epoch, position.step_of_epoch)
        self.write(self.folder.checkpoints / name)
        if self.processes.is_rank0:
            prune_checkpoints(self.folder.checkpoints, self.config.checkpoint.keep)
        self.requests.saved = time.monotonic()

    def write(self, folder: Path) -> None:
        """Write a checkpoint; the first process does, since all hold the same."""
        self.processes.activity = f"saving {folder.name}"
        if self.processes.is_rank0:
            write_checkpoint(folder, self.state.tensors(), self.state.to_json())

    def finish(self) -> float:
        """Write ``final``, and ``best`` if nothing was selected; seconds of earlier parts."""
        self.write(self.folder.final)
        selection = self.state.selection
        if selection.best is None:
            selection.best_epoch = self.state.position.epoch
            self.write(self.folder.best)
        return self.state.totals.earlier_seconds

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue exactly where the checkpoint was written."""
        self.state.load(checkpoint, self.config.seed)

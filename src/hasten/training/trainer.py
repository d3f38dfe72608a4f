"""The training loop: epochs, phases and steps; evaluation, early stopping, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import astuple
from pathlib import Path

from torch import Tensor, nn

from hasten.config import RunConfig
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import require_same_checksums
from hasten.evaluation.ranker import Evaluation
from hasten.objectives.base import Phase
from hasten.runs.checkpoint import Checkpoint, checkpoint_name, prune_checkpoints
from hasten.runs.journal import Journal, RankLog
from hasten.runs.progress import Progress
from hasten.runs.run_folder import RunFolder
from hasten.training.capture.step import capture_steps
from hasten.training.compile import CompileReport, compile_phases, compile_step, is_compiling
from hasten.training.control_flags import ControlFlags, RunControl
from hasten.training.early_stopping import EarlyStopping
from hasten.training.epoch_report import Callback, EpochReport
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.memory.device import release_memory
from hasten.training.memory_recovery import OutOfMemoryRecovery
from hasten.training.mixed_precision.pins import pin_unstable_modules
from hasten.training.nonfinite import NonFiniteGuard
from hasten.training.precision import Precision, resolve_precision
from hasten.training.schedule import Schedule
from hasten.training.sharding.checkpoint_writer import CheckpointWriter
from hasten.training.sharding.tables import shard_tables
from hasten.training.signals import StopNow, StopSignals
from hasten.training.state import TrainingState, for_sums
from hasten.training.step import OptimizerStep
from hasten.training.weight_average import WeightAverage

#: steps between reads of losses: on a CPU, and on other devices, where a read waits for the device
_SYNC_INTERVAL_CPU, _SYNC_INTERVAL = 1, 25


class Trainer:
    """Trains a model's phases in a run folder. Only rank 0 writes to the run folder."""

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
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.model, self.phases, self.config = model, list(phases), config
        self.folder, self.journal, self.progress = folder, journal, progress
        self.evaluate, self.processes = evaluate, processes
        options, self.device = config.training, processes.device
        #: embedding tables whose rows are divided over the processes (``training.shard_tables``)
        self.sharded_tables = shard_tables(model, self.phases, options, processes)
        precision = Precision(resolve_precision(options.precision, self.device), self.device)
        data_parallel = DataParallelRank(processes.rank, processes.world)
        settings = options, precision, data_parallel, self.device, processes
        # one for each phase
        self.steppers = [OptimizerStep(phase, i, *settings) for i, phase in enumerate(self.phases)]
        self.capture_report = capture_steps(self.steppers, options)
        self.steps_per_epoch = sum(phase.steps() for phase in self.phases)
        average = None
        if options.average is not None and self.phases:
            average = WeightAverage(model, options.average, self.steps_per_epoch)
        schedule = Schedule.of(options, self.steps_per_epoch)
        early_stopping = EarlyStopping(config.evaluation.metrics[0], options.patience)
        self.state = TrainingState(model, self.steppers, schedule, early_stopping, average)
        self.control = RunControl(config, signals, processes, callbacks)
        self.recovery = OutOfMemoryRecovery(model, self.steppers, self.state, journal, processes)
        # pins: modules kept in fp32; bad_steps: non-finite steps in a row that end the run
        pins, bad_steps = self.state.pins, options.bad_steps
        self.guard = NonFiniteGuard(model, self.steppers, bad_steps, journal, processes, pins)
        if self.sharded_tables:
            self.guard.sharded = True
            # a process that skipped a step for lack of memory would leave others waiting for rows
            self.recovery.disable()
        self.writer = CheckpointWriter(config, self.state, self.sharded_tables, processes)
        #: the evaluation of the best epoch; None if that was before the run was resumed
        self.best_evaluation: Evaluation | None = None
        # models without phases were trained before (Model.fit): one epoch evaluates and saves
        self.epochs = options.epochs if self.phases else 1
        self.last_time, self.cleanup_every = time.perf_counter(), options.cleanup_every
        self.sync_interval = _SYNC_INTERVAL_CPU if self.device.type == "cpu" else _SYNC_INTERVAL

    def run(self, until: int | None = None) -> str:
        """Train until the epoch limit, early stopping, time limit or a callback; return the reason.

        until: stop after this epoch at the latest; the learning-rate schedule does not change.
        """
        self.control.start()
        self.state.started = self.control.started
        self.model.train()
        if self.config.training.precision == "auto" and not self.state.position.step:
            pins, seed = self.state.pins, self.config.seed
            self.journal.log_train(pin_unstable_modules(self.steppers, pins, self.processes, seed))
        self.compile()
        while self.state.position.epoch < min(self.epochs, until or self.epochs):
            if self.state.early_stopping.exhausted:
                return f"no improvement for {self.config.training.patience}"
            if self.train_epoch():
                return "max_time"
            if self.control.run_callbacks(self.report):
                return "callback"
        return "epochs"

    def compile(self) -> None:
        """Compile each phase as configured or, in a resumed run, as the run did before."""
        mode, earlier = self.config.training.compile, self.state.compile_reports
        if mode == "off" and not earlier:
            return
        self.processes.activity = "compiling"
        reports = compile_phases(self.steppers, earlier, mode, self.processes, self.compile_or_stop)
        if not earlier:
            for report in reports:
                self.journal.log_train(f"compile: {report.to_json()}")
        self.state.compile_reports = reports

    def compile_or_stop(self, stepper: OptimizerStep, mode: str) -> CompileReport:
        """Compile one phase. A signal stops the run at once, as there is nothing to save."""
        try:
            with self.control.signals.stop_at_once():
                return compile_step(stepper, mode, self.config.seed, self.epochs)
        except StopNow:
            self.control.raise_interrupted(self.state.position.step, self.folder.path)

    def train_epoch(self) -> bool:
        """Train from the current position to the end of the epoch; True if time ran out."""
        position, epoch = self.state.position, self.state.position.epoch
        self.progress.start_epoch(epoch + 1, self.steps_per_epoch)
        while position.phase < len(self.phases):
            stepper = self.steppers[position.phase]
            if position.index == 0:
                stepper.phase.start_epoch(self.config.seed, epoch)
            if self.train_phase(stepper):
                return True
            self.last_time = time.perf_counter()
            stepper.phase.end_epoch(self.config.seed, epoch)
            self.record_time()
            position.phase, position.index = position.phase + 1, 0
        return self.finish_epoch()

    def train_phase(self, stepper: OptimizerStep) -> bool:
        """Take the remaining steps of a phase; True if time ran out."""
        state, position, phase = self.state, self.state.position, stepper.phase
        losses: dict[str, Tensor] = {}
        self.last_time = time.perf_counter()
        while position.index < phase.steps():
            batch = stepper.plan(self.config.seed, position.epoch, position.index)
            self.processes.activity = f"step {position.step + 1}, phase {phase.name}"
            flags = self.control.collect() if stepper.all_reduce else ControlFlags()
            try:
                # A signal stops the run after the step. A run of one process is also stopped within
                # a step while torch.compile compiles, which can take minutes
                may_stop_at_once = is_compiling if self.processes.world == 1 else (lambda: False)
                with self.control.signals.stop_at_once(may_stop_at_once):
                    values = stepper(batch, state.schedule.at(position.step), flags)
            except StopNow:
                stepper.zero_grad()
                self.record_losses(phase, losses)
                self.save()
                self.control.raise_interrupted(position.step, self.folder.path)  # always raises
            for name, value in values.items():
                losses[name] = losses[name] + value if name in losses else for_sums(value)
            state.advance(phase, batch)
            sync = position.step % self.sync_interval == 0
            # If steps lacked memory in any process, recover() sets the position back to the first
            # of them. Asking other processes makes the host wait, so they are not asked each step
            last = position.index == phase.steps()
            ask_others = sync or last or state.average_due or self.is_save_due
            if self.recovery.recover(stepper, batch, ask_others):  # the position was set back
                continue
            state.average_weights(stepper)
            if self.cleanup_every and position.step % self.cleanup_every == 0:
                release_memory(self.device)
            shown_loss = None
            if sync:
                self.record_losses(phase, losses)
                self.guard.check(stepper, batch, position.step)
                shown_loss = sum(state.mean_losses().values())
            self.progress.advance(shown_loss)
            agreed = self.control.agreed_after_step(stepper.summed_control_flags, sync)
            out_of_time = agreed.time_out > 0
            if out_of_time or agreed.save > 0 or self.is_save_due or self.control.stop is not None:
                self.record_losses(phase, losses)
                self.save()
                self.control.raise_if_stopped(self.state.position.step, self.folder.path)
                self.last_time = time.perf_counter()
            if out_of_time:
                return True
        self.record_losses(phase, losses)
        return False

    def record_losses(self, phase: Phase, losses: dict[str, Tensor]) -> None:
        """Add losses and time to the totals, and clear ``losses``. Synchronizes with the device."""
        self.state.totals.add_losses(phase.name, losses)
        losses.clear()
        self.record_time()

    def record_time(self) -> None:
        """Add the time since the last call to the totals."""
        totals, now = self.state.totals, time.perf_counter()
        totals.epoch_seconds += now - self.last_time
        totals.train_seconds += now - self.last_time
        self.last_time = now

    @property
    def is_save_due(self) -> bool:
        """Whether ``checkpoint.every_steps`` asks for a checkpoint after this step."""
        every = self.config.checkpoint.every_steps
        return every is not None and self.state.position.step % every == 0

    def finish_epoch(self) -> bool:
        """Log the epoch; when due, evaluate, update best and save; True if time ran out."""
        state, position, totals = self.state, self.state.position, self.state.totals
        early_stopping, finished = state.early_stopping, position.epoch + 1
        require_same_checksums(self.processes, self.model, f"after epoch {finished}")
        self.if_stopped_save_and_raise()
        losses = state.mean_losses()
        is_last, is_best = finished >= self.epochs, False
        evaluation: Evaluation | None = None
        if self.evaluate is not None and (is_last or finished % self.config.evaluation.every == 0):
            self.processes.activity = f"the evaluation after epoch {finished}"
            with nullcontext() if state.average is None else state.average.applied():
                evaluation = self.evaluate()
            self.if_stopped_save_and_raise()
            if evaluation.was_stopped:  # by the time limit: resuming starts with this evaluation
                self.save()
                return True
            self.model.train()
            totals.evaluate_seconds += evaluation.seconds
            is_best = early_stopping.update(evaluation.values[early_stopping.metric], finished)
        position.epoch, position.phase, position.index, position.step_of_epoch = finished, 0, 0, 0
        # totals.examples counts the whole run
        rate = totals.examples // finished / max(totals.epoch_seconds, 1e-9)
        seconds, memory = totals.epoch_seconds, self.recovery.budget.describe_usage()
        self.report = EpochReport(
            finished, position.step, losses, state.lr, seconds, rate, memory, evaluation, is_best
        )
        self.report.write(self.journal, self.progress, early_stopping.metric)
        totals.losses, totals.epoch_seconds = {}, 0.0
        if is_best:
            self.best_evaluation = evaluation
            self.write(self.folder.best)
        if self.control.is_epoch_save_due(finished) or is_last:
            self.save()
        return False

    def if_stopped_save_and_raise(self) -> None:
        self.control.synchronize_stop()
        if self.control.stop is not None:
            self.save()
            self.control.raise_if_stopped(self.state.position.step, self.folder.path)

    def save(self) -> None:
        """Write a checkpoint of the current position; delete those beyond ``checkpoint.keep``."""
        began, position = time.monotonic(), self.state.position
        name = checkpoint_name(position.epoch, position.step_of_epoch)
        self.write(self.folder.checkpoints / name, numbered=True)
        if self.processes.is_rank0:
            keep, log = self.config.checkpoint.keep, self.journal.log_train
            prune_checkpoints(self.folder.checkpoints, keep, log)
        self.control.saved(began)

    def write(self, folder: Path, numbered: bool = False) -> None:
        """Write a checkpoint; all processes call it, rank 0 writes. Refuses non-finite weights."""
        self.processes.activity = f"saving {folder.name}"
        self.guard.check_weights()
        self.writer.write(folder, numbered)

    def finish(self) -> None:
        """Write the checkpoint ``final``; ``best`` too if there was no evaluation. Free memory."""
        if not self.writer.is_saved:  # the run can be resumed here, with more epochs
            self.save()
        self.write(self.folder.final)
        early_stopping = self.state.early_stopping
        if early_stopping.best is None:
            early_stopping.best_epoch = self.state.position.epoch
            self.write(self.folder.best)
        self.recovery.release()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue exactly where the checkpoint was written."""
        self.state.load(self.sharded_tables.own_rows(checkpoint))
        self.writer.saved = astuple(self.state.position)
        checkpoint.tensors.clear()  # free memory: the caller keeps the checkpoint object
        self.recovery.restore()

"""Before and after training: build the trainer; evaluate the best checkpoint, write the summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from hasten.build import evaluate_task, load_weights
from hasten.data.tables import AnyDataset
from hasten.distributed.device import describe_device
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import shared_checkpoint
from hasten.errors import HastenError, Interrupted
from hasten.evaluation.protocols import AnyTask
from hasten.evaluation.ranker import Evaluation
from hasten.evaluation.validation_sample import validation_task
from hasten.models.interface import Model
from hasten.objectives.base import Phase
from hasten.runs.checkpoint import Checkpoint, read_checkpoint
from hasten.runs.energy import EnergyMeter
from hasten.runs.environment import peak_memory_bytes
from hasten.runs.journal import Journal, RankLog
from hasten.runs.progress import Progress
from hasten.runs.record import remove_record, write_record
from hasten.runs.resuming import all_options, last_kept_step, state_part
from hasten.runs.run_folder import RunFolder
from hasten.runs.summary import Summary
from hasten.runs.trackers.tracker import Status
from hasten.training.effective import options_in_effect
from hasten.training.epoch_report import Callback
from hasten.training.resolve_config import ResolvedConfig
from hasten.training.signals import StopNow, StopSignals, signal_name
from hasten.training.trainer import Trainer


@dataclass(frozen=True)
class RunSetup:
    """Everything that a run needs before its first step."""

    processes: Processes
    resolved: ResolvedConfig
    dataset: AnyDataset
    model: Model
    phases: Sequence[Phase]
    #: validation and test
    tasks: tuple[AnyTask, AnyTask | None]
    folder: RunFolder
    quiet: bool
    start_time: float
    #: stop after this epoch; None: after ``training.epochs``
    until: int | None = None
    callbacks: Sequence[Callback] = ()  #: called after each epoch
    changed: Mapping[str, Any] = field(default_factory=dict)  #: options that resuming changed


@contextmanager
def open_run(
    setup: RunSetup, checkpoint: Checkpoint | None, warnings: list[str] | None = None
) -> Iterator[TrainingRun]:
    """Open the journal, handle signals and build the trainer, in a locked run folder.

    checkpoint: to continue from; None: train from the beginning. warnings: None for a new run.
    """
    processes, folder, config = setup.processes, setup.folder, setup.resolved.config
    # the last step whose records are kept: None in a new run, -1 in a run without a checkpoint
    resume_step = None if warnings is None else -1
    if checkpoint is not None:
        resume_step = last_kept_step(checkpoint)
    is_rank0 = processes.is_rank0
    with (
        Journal(folder, setup.quiet, resume_step=resume_step, logging=config.logging)
        if is_rank0
        else RankLog(folder.path, processes.rank) as journal,
        Progress(
            config.training.epochs, setup.quiet or not is_rank0, limit=config.training.max_time
        ) as progress,
        StopSignals() as signals,
        EnergyMeter() as energy,
    ):
        if is_rank0:
            remove_record(folder)
        training = TrainingRun(
            setup, checkpoint, warnings or [], journal, progress, signals, energy
        )
        try:
            yield training
        except BaseException as error:
            with suppress(HastenError, RuntimeError, OSError):  # report the first error only
                summary = training.current_summary(_stop_reason(error))
                training.finish_record(summary, complete=False)
            raise
        finally:
            training.trainer.recovery.budget.stop()


def _stop_reason(error: BaseException) -> str:
    """Why a run stopped, from the error that stopped it."""
    if isinstance(error, Interrupted):
        return f"interrupted by {signal_name(error.signal_number)}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"failed: {error.code if isinstance(error, HastenError) else type(error).__name__}"


class TrainingRun:
    """A run with its trainer: call ``trainer.run()``, then :meth:`summarize`."""

    def __init__(
        self,
        setup: RunSetup,
        checkpoint: Checkpoint | None,
        warnings: Sequence[str],
        journal: Journal | RankLog,
        progress: Progress,
        signals: StopSignals,
        energy: EnergyMeter,
    ) -> None:
        self.setup, self.journal, self.signals, self.energy = setup, journal, signals, energy
        self.generator_state: Tensor = torch.get_rng_state()
        processes, resolved = setup.processes, setup.resolved
        for note in setup.dataset.source.notes if checkpoint is None else ():
            journal.log_train(f"data: {note}")
        device = f"device: {describe_device(processes.device)}"
        for note in (*processes.describe(), device, *resolved.notes):
            journal.log_train(note)
        if plan := setup.folder.read_plan():
            journal.log_train(f"memory budget: {plan['reason']}")
        for text in (*warnings, *resolved.warnings):
            journal.warn(text)
        valid, _ = setup.tasks
        if not len(valid.queries) and resolved.config.training.patience is not None:
            journal.warn("training.patience has no effect: there is no validation part")
        self.trainer = Trainer(
            setup.model,
            setup.phases,
            resolved.config,
            folder=setup.folder,
            journal=journal,
            progress=progress,
            signals=signals,
            evaluate=self.validate if len(valid.queries) else None,
            processes=processes,
            callbacks=setup.callbacks,
        )
        if plan is not None:
            self.trainer.recovery.set_budget(plan["budget_bytes"])
        if checkpoint is not None:
            self.trainer.restore(checkpoint)
            position = self.trainer.state.position
            event = {"event": "resume", "step_of_epoch": position.step_of_epoch,
                     "changed": setup.changed}  # fmt: skip
            journal.record("event", position.epoch, position.step, event)
        else:
            names = resolved.config.evaluation.metrics
            tags = [f"{part}/{name}" for part in ("valid", "test") for name in names]
            run_info = {"protocol": self.protocol, "device": describe_device(processes.device),
                     "data": setup.dataset.name, "torch": torch.__version__}  # fmt: skip
            journal.record_settings(all_options(resolved.config), tags, run_info)
        if not setup.phases and checkpoint is None:
            self.fit()

    def fit(self) -> None:
        """Train a model without gradient steps. A signal stops it at once."""
        start_time, trainer = time.perf_counter(), self.trainer
        try:
            with self.signals.stop_at_once():
                self.setup.model.fit(self.setup.dataset)
        except StopNow:
            trainer.control.raise_interrupted(0, trainer.folder.path)
        trainer.state.totals.train_seconds = time.perf_counter() - start_time

    def validate(self) -> Evaluation:
        """Evaluate during training: on a sample, if so configured, and within the time limit."""
        config = self.setup.resolved.config
        task = validation_task(self.setup.tasks[0], config.evaluation, config.seed)
        return self.evaluate(task, lambda: self.trainer.control.overdue)

    def validate_best(self) -> Evaluation | None:
        """The evaluation of the best epoch on the whole validation set; None if it is empty."""
        task, evaluation = self.setup.tasks[0], self.trainer.best_evaluation
        if evaluation is not None and evaluation.protocol == task.protocol.text():
            return evaluation
        return self.evaluate(task) if len(task.queries) else None

    def evaluate(self, task: AnyTask, stop: Callable[[], bool] = lambda: False) -> Evaluation:
        """Evaluate the model as it is now; a signal, or ``stop``, ends the evaluation early."""
        setup = self.setup
        return self.trainer.recovery.evaluate(
            lambda memory_retry: evaluate_task(
                setup.model,
                task,
                setup.resolved.config,
                setup.processes,
                lambda: self.signals.received is not None or stop(),
                memory_retry,
                self.trainer.sharded_tables.shard,
            )
        )

    def load_best(self) -> Checkpoint:
        """Read the best checkpoint and load its weights into the model."""
        setup, groups = self.setup, {"weights", "phases"}
        shards = self.trainer.sharded_tables.tensors
        read = partial(read_checkpoint, setup.folder.best, groups, shards)
        best = shared_checkpoint(setup.processes, read, shards)
        assert best is not None
        load_weights(setup.model, best)
        self.trainer.state.load_phases(best)
        return best

    def summarize(self, stopped_by: str) -> Summary:
        """Evaluate the best checkpoint; write ``metrics.json`` and ``record.json``."""
        setup, trainer = self.setup, self.trainer
        processes, folder = setup.processes, setup.folder
        trainer.finish()
        best = self.load_best()
        processes.activity = "the evaluation at the end"
        validated, test = self.validate_best(), setup.tasks[1]
        tested = self.evaluate(test) if test is not None and len(test.queries) else None
        trainer.control.synchronize_stop()
        trainer.control.raise_if_stopped(trainer.state.position.step, trainer.folder.path)
        torch.set_rng_state(self.generator_state)
        best_epoch = int(state_part(best, "selection", "best_epoch")["best_epoch"])
        summary = self.current_summary(
            stopped_by, validated, tested, best_epoch, max(processes.gather(self.peak_memory()))
        )
        summary = replace(summary, plan=trainer.recovery.measured_plan(folder.read_plan()))
        if tested is not None:
            self.journal.record("test", best_epoch, trainer.state.position.step, tested.values)
            self.journal.log_valid(
                f"test of epoch {best_epoch}  {tested.text()}  ({tested.protocol})"
            )
        if processes.is_rank0:
            folder.write_json("metrics.json", summary.to_json())
        self.finish_record(summary, complete=True)
        return summary

    def peak_memory(self) -> int:
        """The peak memory of this process, in bytes."""
        return max(self.trainer.recovery.budget.before, peak_memory_bytes())

    def current_summary(
        self,
        stopped_by: str,
        validated: Evaluation | None = None,
        tested: Evaluation | None = None,
        best_epoch: int | None = None,
        peak_memory: int | None = None,
    ) -> Summary:
        """The summary of the run so far.

        Without ``validated``, ``valid`` has only the metric that selects the best checkpoint;
        without ``peak_memory``, the memory is that of this process.
        """
        setup, trainer = self.setup, self.trainer
        config, state = setup.resolved.config, trainer.state
        totals, selection = state.totals, state.early_stopping
        selected = {} if selection.best is None else {selection.metric: selection.best}
        return Summary(
            run=setup.folder.path,
            model=config.model.name,
            data=setup.dataset.name,
            epochs=state.position.epoch,
            valid=selected if validated is None else validated.values,
            test={} if tested is None else tested.values,
            protocol=self.protocol,
            seconds={
                "train": totals.train_seconds,
                "evaluate": totals.evaluate_seconds,
                "total": totals.earlier_seconds + time.perf_counter() - setup.start_time,
            },
            examples_per_second=totals.examples / max(totals.train_seconds, 1e-9),
            peak_memory_bytes=self.peak_memory() if peak_memory is None else peak_memory,
            effective=options_in_effect(trainer, config.evaluation.every),
            stopped_by=stopped_by,
            best_epoch=selection.best_epoch if best_epoch is None else best_epoch,
        )

    @property
    def protocol(self) -> str:
        """The protocol of the test metrics, or of validation if nothing is tested."""
        valid, test = self.setup.tasks
        task = next((t for t in (test, valid) if t is not None and len(t.queries)), None)
        return self.setup.dataset.split if task is None else task.protocol.text()

    def finish_record(self, summary: Summary, *, complete: bool) -> None:
        """Write ``record.json``, on rank 0."""
        if self.setup.processes.is_rank0:
            energy, config = self.energy.report(), self.setup.resolved.config
            write_record(self.setup.folder, summary, config, energy, complete=complete)
            interrupted = summary.stopped_by.startswith("interrupted")
            status = "finished" if complete else "interrupted" if interrupted else "failed"
            self.journal.finish(cast(Status, status))

"""One session in a locked run folder: journal, signals and trainer; then the summary."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.build import evaluate_task, load_weights
from hasten.data.tables import AnyDataset
from hasten.distributed.device import describe_device
from hasten.distributed.processes import Processes
from hasten.distributed.rank_log import RankLog
from hasten.distributed.replicas import shared_checkpoint
from hasten.evaluation.protocols import AnyTask
from hasten.evaluation.ranker import Evaluation
from hasten.models.interface import Model
from hasten.objectives.base import Phase
from hasten.runs.checkpoint import Checkpoint, read_checkpoint
from hasten.runs.environment import peak_memory_bytes
from hasten.runs.journal import Journal
from hasten.runs.progress import Progress
from hasten.runs.resuming import position_of, state_part
from hasten.runs.run_folder import RunFolder
from hasten.runs.summary import Summary
from hasten.training.effective import options_in_effect
from hasten.training.resolve_config import ResolvedConfig
from hasten.training.signals import StopSignals
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
    begin: float


@contextmanager
def open_run(
    setup: RunSetup, checkpoint: Checkpoint | None, warnings: list[str] | None = None
) -> Iterator[TrainingRun]:
    """Open the journal, handle signals and build the trainer, in a locked run folder.

    checkpoint: where a run continues; None: from the beginning. warnings: None for a new run.
    """
    processes, folder, config = setup.processes, setup.folder, setup.resolved.config
    # a run that died before its first checkpoint starts again: none of its records are kept
    resume_step = None if warnings is None else -1
    if checkpoint is not None:
        position = position_of(checkpoint)
        # records are written at the end of an epoch: within an epoch, none of this step is kept
        resume_step = position["step"] - (position["step_of_epoch"] > 0)
    first = processes.is_rank0
    with (
        Journal(folder, setup.quiet, resume_step=resume_step)
        if first
        else RankLog(folder.path, processes.rank) as journal,
        Progress(config.training.epochs, setup.quiet or not first) as progress,
        StopSignals() as signals,
    ):
        yield TrainingRun(setup, checkpoint, warnings or [], journal, progress, signals)


class TrainingRun:
    """A run that is ready for ``trainer.run()`` and then for :meth:`summarize`."""

    def __init__(
        self,
        setup: RunSetup,
        checkpoint: Checkpoint | None,
        warnings: Sequence[str],
        journal: Journal | RankLog,
        progress: Progress,
        signals: StopSignals,
    ) -> None:
        self.setup, self.journal, self.signals = setup, journal, signals
        self.generator_state: Tensor = torch.get_rng_state()
        processes, resolved = setup.processes, setup.resolved
        for note in setup.dataset.source.notes if checkpoint is None else ():
            journal.log_train(f"data: {note}")
        device = f"device: {describe_device(processes.device)}"
        for note in (*processes.describe(), device, *resolved.notes):
            journal.log_train(note)
        for text in (*warnings, *resolved.warnings):
            journal.warn(text)
        valid, _ = setup.tasks
        self.trainer = Trainer(
            setup.model,
            setup.phases,
            resolved.config,
            folder=setup.folder,
            journal=journal,
            progress=progress,
            signals=signals,
            evaluate=(lambda: self.evaluate(valid)) if len(valid.queries) else None,
            processes=processes,
        )
        if checkpoint is not None:
            self.trainer.restore(checkpoint)
            position = self.trainer.state.position
            journal.record("event", position.epoch, position.step, {"event": "resume"})
        if not setup.phases:
            setup.model.fit(setup.dataset)

    def evaluate(self, task: AnyTask) -> Evaluation:
        """Evaluate the model as it is now; a signal stops the evaluation early."""
        setup = self.setup
        return evaluate_task(
            setup.model,
            task,
            setup.resolved.config,
            setup.processes,
            lambda: self.signals.received is not None,
        )

    def summarize(self, stopped_by: str) -> Summary:
        """Evaluate the best checkpoint on validation and test, and write ``metrics.json``."""
        setup, trainer = self.setup, self.trainer
        processes, folder, dataset = setup.processes, setup.folder, setup.dataset
        config = setup.resolved.config
        trainer.finish()
        best = shared_checkpoint(
            processes, lambda: read_checkpoint(folder.best, groups={"weights", "phases"})
        )
        assert best is not None
        load_weights(setup.model, best)
        trainer.state.load_phases(best)
        processes.activity = "the evaluation at the end"
        validated, tested = (
            self.evaluate(task) if task is not None and len(task.queries) else None
            for task in setup.tasks
        )
        last = tested or validated
        trainer.control.synchronize_stop()
        trainer.raise_if_stopped()
        torch.set_rng_state(self.generator_state)
        position, totals = trainer.state.position, trainer.state.totals
        summary = Summary(
            run=folder.path,
            model=config.model.name,
            data=dataset.name,
            epochs=position.epoch,
            valid={} if validated is None else validated.values,
            test={} if tested is None else tested.values,
            protocol=dataset.split if last is None else last.protocol,
            seconds={
                "train": totals.train_seconds,
                "evaluate": totals.evaluate_seconds,
                "total": totals.earlier_seconds + time.perf_counter() - setup.begin,
            },
            examples_per_second=totals.examples / max(totals.train_seconds, 1e-9),
            peak_memory_bytes=max(processes.gather(peak_memory_bytes())),
            effective=options_in_effect(trainer, config.evaluation.every),
            stopped_by=stopped_by,
            best_epoch=int(state_part(best, "selection", "best_epoch")["best_epoch"]),
        )
        if tested is not None:
            self.journal.record("test", summary.best_epoch, position.step, tested.values)
            self.journal.log_valid(
                f"test of epoch {summary.best_epoch}  {tested.text()}  ({tested.protocol})"
            )
        if processes.is_rank0:
            folder.write_json("metrics.json", summary.to_json())
        return summary

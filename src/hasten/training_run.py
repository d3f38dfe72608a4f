"""A run from its first step to its summary, in a locked folder: trainer, then evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from hasten.build import judge_task, load_weights
from hasten.data.tables import AnyDataset
from hasten.distributed.processes import Processes
from hasten.distributed.rank_log import RankLog
from hasten.distributed.replicas import shared_checkpoint
from hasten.evaluation.protocols import AnyTask
from hasten.evaluation.ranker import Evaluation
from hasten.objectives.base import Phase
from hasten.runs.checkpoint import Checkpoint, read_checkpoint
from hasten.runs.environment import peak_memory_bytes
from hasten.runs.journal import Journal
from hasten.runs.progress import Progress
from hasten.runs.run_folder import RunFolder
from hasten.runs.summary import Summary
from hasten.training.batch_layout import Layout
from hasten.training.effective import switches_in_effect
from hasten.training.signals import StopSignals
from hasten.training.trainer import Trainer


@dataclass(frozen=True)
class Session:
    """What a run consists of when its first step begins."""

    processes: Processes
    layout: Layout
    dataset: AnyDataset
    model: nn.Module
    phases: Sequence[Phase]
    #: validation and test
    tasks: tuple[AnyTask, AnyTask]
    folder: RunFolder
    quiet: bool
    begin: float


def carry_out(
    session: Session, checkpoint: Checkpoint | None, warnings: list[str] | None = None
) -> Summary:
    """Everything from the first step to the summary, in a locked run folder.

    checkpoint: what a run goes on from; None: the beginning. warnings: None for a new run.
    """
    processes, layout, folder = session.processes, session.layout, session.folder
    config, dataset, model = layout.config, session.dataset, session.model
    valid, test = session.tasks
    # a run that died before its first checkpoint begins again: none of its records are kept
    resume_step = None if warnings is None else -1
    if checkpoint is not None:
        position = checkpoint.state["position"]
        # records are made when an epoch is finished: in mid-epoch, none of this step is kept
        resume_step = position["step"] - (position["step_of_epoch"] > 0)
    generator_state = torch.get_rng_state()
    first = processes.first
    with (
        Journal(folder, session.quiet, resume_step=resume_step)
        if first
        else RankLog(folder.path, processes.rank) as journal,
        Progress(config.training.epochs, session.quiet or not first) as progress,
        StopSignals() as signals,
    ):
        for note in dataset.source.notes if checkpoint is None else ():
            journal.train(f"data: {note}")
        for note in (*processes.describe(), *layout.notes):
            journal.train(note)
        for text in (*(warnings or ()), *layout.warnings):
            journal.warn(text)

        def judge(task: AnyTask) -> Evaluation:
            return judge_task(model, task, config, processes, lambda: signals.received is not None)

        trainer = Trainer(
            model,
            session.phases,
            config,
            folder=folder,
            journal=journal,
            progress=progress,
            signals=signals,
            evaluate=(lambda: judge(valid)) if len(valid.queries) else None,
            processes=processes,
        )
        if checkpoint is not None:
            trainer.restore(checkpoint)
            journal.record(
                "event", trainer.position.epoch, trainer.position.step, {"event": "resume"}
            )
        if not trainer.phases:
            cast(Any, model).fit(dataset)
        stopped_by = trainer.run()
        total = trainer.finish()
        best = shared_checkpoint(
            processes, lambda: read_checkpoint(folder.best, groups={"weights", "phases"})
        )
        assert best is not None
        load_weights(model, best)
        trainer.load_phase_states(best)
        processes.place = "the evaluation at the end"
        validated = judge(valid) if len(valid.queries) else None
        tested = judge(test) if len(test.queries) else None
        trainer.agree_to_stop()
        trainer.raise_if_interrupted()
        torch.set_rng_state(generator_state)
        position, totals = trainer.position, trainer.totals
        summary = Summary(
            run=folder.path,
            model=config.model.name,
            data=dataset.name,
            epochs=position.epoch,
            valid={} if validated is None else validated.values,
            test={} if tested is None else tested.values,
            protocol=dataset.split if tested is None else tested.protocol,
            seconds={
                "train": totals.train_seconds,
                "evaluate": totals.evaluate_seconds,
                "total": total + time.perf_counter() - session.begin,
            },
            examples_per_second=totals.examples / max(totals.train_seconds, 1e-9),
            peak_memory_bytes=processes.largest(peak_memory_bytes()),
            effective=switches_in_effect(trainer, config),
            stopped_by=stopped_by,
            best_epoch=int(best.state["selection"]["best_epoch"]),
        )
        if tested is not None:
            journal.record("test", summary.best_epoch, position.step, tested.values)
            shown = "  ".join(f"{name} {value:.4f}" for name, value in tested.values.items())
            journal.valid(f"test of epoch {summary.best_epoch}  {shown}  ({tested.protocol})")
        if first:
            folder.write_json("metrics.json", summary.to_json())
    return summary

"""The flow of a run: configuration -> data -> model -> trainer -> evaluation -> run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from hasten.config import RunConfig
from hasten.configuration.build import load_config
from hasten.data.load import load_dataset, load_table
from hasten.data.store import fingerprint, load_stored, save_dataset
from hasten.data.tables import TEST, VALID, Dataset
from hasten.errors import CheckpointError, ConfigurationError, RunFolderError
from hasten.evaluation.protocols import RankingTask, ranking_task
from hasten.evaluation.ranker import Evaluation
from hasten.evaluation.ranker import evaluate as rank
from hasten.models.seam import Model, Sizes
from hasten.ops.random import Stream, key
from hasten.registry import load_model
from hasten.training.checkpoint import Checkpoint, newest_checkpoint, read_checkpoint
from hasten.training.device import prepare_torch, resolve_device
from hasten.training.environment import describe_environment, peak_memory_bytes
from hasten.training.journal import Journal
from hasten.training.machine import tune_process
from hasten.training.phase import Phase
from hasten.training.progress import Progress
from hasten.training.resuming import (
    changed,
    drop_later,
    initial_weights,
    named_checkpoint,
    refuse_changed_data,
    requested_changes,
    with_changes,
)
from hasten.training.run_folder import RunFolder
from hasten.training.signals import StopSignals
from hasten.training.summary import Summary, switches_in_effect
from hasten.training.trainer import Trainer, phase_state


@dataclass(frozen=True)
class LoadedRun:
    """A run's model with the weights of one checkpoint, and its data."""

    path: Path
    config: RunConfig
    model: nn.Module
    dataset: Dataset
    device: torch.device


def train(
    config: RunConfig,
    *,
    table: object | None = None,
    quiet: bool = False,
    resume_auto: bool = False,
) -> Summary:
    """Train a model as configured, in a new run folder; ``table`` replaces ``data.path``."""
    if table is None:
        config = _with_sample(config)
    if resume_auto:
        if config.out is None:
            raise ConfigurationError("--resume auto needs --out: the folder that may hold the run")
        if RunFolder.holds_run(config.out):
            return resume(config.out, changes=requested_changes(config), quiet=quiet)
    tune_process()
    begin = time.perf_counter()
    device = resolve_device(config.device)
    dataset = _load(config, table)
    weights = None if config.init_from is None else initial_weights(Path(config.init_from))
    prepare_torch(config, device)
    model = _build(config, dataset, device)
    if weights is not None:
        _load_weights(model, weights)
    # what cannot be learned from, or judged by, is refused here, before there is a folder
    phases = cast(Model, model).phases(dataset, config)
    tasks = _tasks(dataset, config)
    folder = RunFolder.create(config.out, config.model.name, dataset.name)
    try:
        folder.write_json("environment.json", describe_environment())
        save_dataset(dataset, folder.data)
        folder.write_json("data.json", _describe(dataset))
        folder.write_config(config)
    except BaseException:
        folder.discard()
        raise
    with folder:
        return _train(config, dataset, model, phases, tasks, device, folder, None, quiet, begin)


def resume(
    run: Path,
    *,
    checkpoint: str | None = None,
    changes: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Summary:
    """Go on with a run in place, from its newest valid checkpoint or a named one."""
    tune_process()
    begin = time.perf_counter()
    with RunFolder.open(run, lock=True) as folder:
        config = with_changes(load_config(folder.path / "config.yaml"), changes or {})
        dataset = load_stored(folder.data)
        refuse_changed_data(folder, dataset)
        device = resolve_device(config.device)
        prepare_torch(config, device)
        model = _build(config, dataset, device)
        warnings: list[str] = []
        if checkpoint is None:
            found = newest_checkpoint(folder.checkpoints, warnings.append)
            if found is None and warnings:
                raise CheckpointError(
                    f"{folder.checkpoints}: every checkpoint is damaged ({'; '.join(warnings)}); "
                    "name best or final by --checkpoint, or start a new run"
                )
        else:
            found = read_checkpoint(named_checkpoint(folder, checkpoint))
            drop_later(folder, found)
        if found is None and config.init_from is not None:
            _load_weights(model, initial_weights(Path(config.init_from)))
        folder.write_config(config)
        phases = cast(Model, model).phases(dataset, config)
        tasks = _tasks(dataset, config)
        return _train(
            config, dataset, model, phases, tasks, device, folder, found, quiet, begin, warnings
        )


def evaluate(
    run: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    checkpoint: str = "best",
    device: str | None = None,
) -> dict[str, Any]:
    """Judge a finished run's checkpoint again, perhaps by another protocol."""
    begin = time.perf_counter()
    loaded = load_run(run, checkpoint=checkpoint, device=device or "auto")
    config = changed(loaded.config, changes or {}, lambda name: name.startswith("evaluation."))
    parts = {}
    for name, part in (("valid", VALID), ("test", TEST)):
        task = ranking_task(loaded.dataset, part, config.evaluation, config.seed)
        if len(task.queries):
            parts[name] = _rank(loaded.model, task, config, loaded.device)
    if not parts:
        raise RunFolderError(f"{run}: its data have neither validation nor test events to rank")
    return {
        "run": str(run),
        "model": config.model.name,
        "data": loaded.dataset.name,
        "checkpoint": checkpoint,
        "valid": parts["valid"].values if "valid" in parts else {},
        "test": parts["test"].values if "test" in parts else {},
        "protocol": next(iter(parts.values())).protocol,
        "seconds": time.perf_counter() - begin,
    }


def load_run(run: Path, *, checkpoint: str = "best", device: str = "auto") -> LoadedRun:
    """The model of a run, in evaluation mode, rebuilt from its folder alone."""
    tune_process()
    with RunFolder.open(run, lock=False) as folder:
        config = load_config(folder.path / "config.yaml")
        dataset = load_stored(folder.data)
        target = resolve_device(device)
        prepare_torch(config, target)
        model = _build(config, dataset, target)
        found = read_checkpoint(named_checkpoint(folder, checkpoint))
        _load_weights(model, found)
        _load_phases(model, dataset, config, found)
        return LoadedRun(folder.path, config, model.eval(), dataset, target)


def _train(
    config: RunConfig,
    dataset: Dataset,
    model: nn.Module,
    phases: Sequence[Phase],
    tasks: tuple[RankingTask, RankingTask],
    device: torch.device,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    quiet: bool,
    begin: float,
    warnings: list[str] | None = None,
) -> Summary:
    """Everything from the first step to the summary, in a locked run folder.

    checkpoint: what a run goes on from; None: the beginning. warnings: None for a new run.
    """
    valid, test = tasks
    # a run that died before its first checkpoint begins again: none of its records are kept
    resume_step = None if warnings is None else -1
    if checkpoint is not None:
        position = checkpoint.state["position"]
        # records are made when an epoch is finished: in mid-epoch, none of this step is kept
        resume_step = position["step"] - (position["step_of_epoch"] > 0)
    generator_state = torch.get_rng_state()
    with (
        Journal(folder, quiet, resume_step=resume_step) as journal,
        Progress(config.training.epochs, quiet) as progress,
        StopSignals() as signals,
    ):
        for note in dataset.source.notes if checkpoint is None else ():
            journal.train(f"data: {note}")
        for text in warnings or ():
            journal.warn(text)

        def judge(task: RankingTask) -> Evaluation:
            return _rank(model, task, config, device, lambda: signals.received is not None)

        trainer = Trainer(
            model,
            phases,
            config,
            folder=folder,
            journal=journal,
            progress=progress,
            signals=signals,
            evaluate=(lambda: judge(valid)) if len(valid.queries) else None,
            device=device,
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
        best = read_checkpoint(folder.best, groups={"weights", "phases"})
        _load_weights(model, best)
        trainer.load_phase_states(best)
        validated = judge(valid) if len(valid.queries) else None
        tested = judge(test) if len(test.queries) else None
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
                "total": total + time.perf_counter() - begin,
            },
            examples_per_second=totals.examples / max(totals.train_seconds, 1e-9),
            peak_memory_bytes=peak_memory_bytes(),
            effective=switches_in_effect(trainer, config, device),
            stopped_by=stopped_by,
            best_epoch=int(best.state["selection"]["best_epoch"]),
        )
        if tested is not None:
            journal.record("test", summary.best_epoch, position.step, tested.values)
            shown = "  ".join(f"{name} {value:.4f}" for name, value in tested.values.items())
            journal.valid(f"test of epoch {summary.best_epoch}  {shown}  ({tested.protocol})")
        folder.write_json("metrics.json", summary.to_json())
    return summary


def _load(config: RunConfig, table: object | None) -> Dataset:
    """The data of a run: a table in memory, or what the configuration names."""
    if table is not None:
        return load_table(table, config.data, config.seed)
    return load_dataset(config.data, config.seed)


def _with_sample(config: RunConfig) -> RunConfig:
    """The configuration with the model's built-in sample where it names no data."""
    if config.data.path is not None or config.data.train is not None:
        return config
    sample = load_model(config.model.name).sample
    return config.model_copy(update={"data": config.data.model_copy(update={"path": sample})})


def _tasks(dataset: Dataset, config: RunConfig) -> tuple[RankingTask, RankingTask]:
    """What is ranked on the validation and on the test part."""
    options, seed = config.evaluation, config.seed
    return (
        ranking_task(dataset, VALID, options, seed),
        ranking_task(dataset, TEST, options, seed),
    )


def _build(config: RunConfig, dataset: Dataset, device: torch.device) -> nn.Module:
    """The model, initialised from the seed alone."""
    state = torch.get_rng_state()
    torch.manual_seed(key(config.seed, Stream.INITIALISATION) % 2**63)
    constructor = cast(Any, load_model(config.model.name))
    model: nn.Module = constructor(config.model, Sizes.of(dataset))
    torch.set_rng_state(state)
    return model.to(device)


def _rank(
    model: nn.Module,
    task: RankingTask,
    config: RunConfig,
    device: torch.device,
    stop: Callable[[], bool] | None = None,
) -> Evaluation:
    options = config.evaluation
    return rank(
        cast(Model, model),
        task,
        options.metrics,
        device=device,
        stop=stop,
    )


def _describe(dataset: Dataset) -> dict[str, Any]:
    source = dataset.source
    return {
        "name": dataset.name,
        "fingerprint": fingerprint(dataset),
        "split": dataset.split,
        "format": source.format,
        "path": source.path,
        "files": list(source.files),
        "counts": source.counts,
        "notes": list(source.notes),
    }


def _load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    try:
        model.load_state_dict(checkpoint.tensors["weights"])
    except RuntimeError as error:
        raise CheckpointError(
            f"{checkpoint.path}: its weights do not fit this model and these data: {error}"
        ) from error


def _load_phases(
    model: nn.Module, dataset: Dataset, config: RunConfig, checkpoint: Checkpoint
) -> None:
    """Give back to the phases what they keep between epochs, where scoring depends on it."""
    if not checkpoint.tensors.get("phases"):
        return
    for phase in cast(Model, model).phases(dataset, config):
        phase.load_state(phase_state(checkpoint, phase.name))

"""Start or resume a training run, or retrain it on training and validation data (refit)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.build import build_model, ranking_tasks, refuse_changed_source, with_builtin_sample
from hasten.config import RunConfig
from hasten.config_loading.build import load_config
from hasten.console import write_stderr
from hasten.data.left_out import training_dataset
from hasten.data.store import load_stored
from hasten.distributed.device import prepare_torch
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import require_same_data, shared_checkpoint
from hasten.errors import ConfigurationError, Interrupted
from hasten.initial_weights import apply_initial_weights, initial_checkpoint
from hasten.models.supports import Supports
from hasten.new_run import new_run
from hasten.registry import load_model
from hasten.runs.allocator import configure_process
from hasten.runs.checkpoint import Checkpoint
from hasten.runs.option_changes import changed_options
from hasten.runs.resuming import (
    checkpoint_to_resume,
    copy_run,
    refuse_changed_stored_data,
    requested_changes,
    with_changes,
)
from hasten.runs.run_folder import RunFolder
from hasten.runs.summary import Summary
from hasten.training.cpu_fallback import fallback_message, falls_back_to_cpu
from hasten.training.epoch_report import Callback
from hasten.training.resolve_config import resolve_config
from hasten.training.sharding.tables import sharded_tensors
from hasten.training_run import RunSetup, open_run

#: subfolder of the run that retrains on train + validation
_REFIT = "refit"


def train(
    config: RunConfig,
    *,
    table: object | None = None,
    quiet: bool = False,
    resume_auto: bool = False,
    refit: bool = False,
    plan: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Train a model in a new run folder; return the summary of the run.

    table: the data, in the place of the file ``data.path``. resume_auto: resume the run in
    ``config.out`` if there is one. plan: predicted memory and time, stored in the run folder.
    overwrite: delete the run in ``config.out``. callbacks: called after each epoch.
    refit: then train a second run on train + validation, in the subfolder ``refit``, for the best
    number of epochs; return its summary. Skipped if ``max_time`` ended the first run.
    """
    if table is None:
        config = with_builtin_sample(config)
    if resume_auto and config.out is None:
        raise ConfigurationError("--resume auto needs --out: the folder that may hold the run")
    if refit and config.data.refit:
        raise ConfigurationError(
            "--refit selects the epochs on the validation part, which data.refit=true trains on: "
            "use only one of them"
        )
    configure_process()
    start_time = time.perf_counter()
    with Processes.join(config.device, config.distributed) as processes:
        existing = _existing_run(processes, config.out, resume_auto)
        with _correct_resume_advice() if refit else nullcontext():
            if existing is None:
                first_summary = _train_new(
                    processes, config, table, quiet, start_time, refit, plan, overwrite, callbacks
                )
            elif refit and existing.name == _REFIT:  # torchrun restarted the processes in the refit
                first_folder = RunFolder(existing.parent, lock=None)
                first_summary = Summary.from_json(
                    processes.run_on_rank0(lambda: first_folder.read_json("metrics.json"))
                )
            else:
                resolved = resolve_config(config, processes).config
                changes = requested_changes(config, resolved, existing)
                # to check that the run has the data of this command
                requested = (resolved, table) if resume_auto and not processes.restarts else None
                first_summary = _resume(
                    processes, existing, None, changes, quiet, start_time, requested,
                    callbacks=callbacks,
                )  # fmt: skip
        if not refit:
            return first_summary
        if first_summary.stopped_by == "max_time":
            if processes.is_rank0:
                write_stderr(
                    "the time limit ended the run before the refit: to go on and refit, repeat "
                    f"the command with  --resume auto --out {first_summary.run}"
                )
            return first_summary
        return _refit(processes, table, quiet, first_summary, plan)


@contextmanager
def _correct_resume_advice() -> Iterator[None]:
    """Correct the message of an interrupted run: ``hasten resume`` would not refit afterwards."""
    try:
        yield
    except Interrupted as error:
        advice = "repeat the command with  --resume auto --out"
        message = str(error).replace("go on with  hasten resume", advice)
        raise Interrupted(message, error.signal_number) from error


def _refit(
    processes: Processes,
    table: object | None,
    quiet: bool,
    first_summary: Summary,
    plan: Mapping[str, Any] | None,
) -> Summary:
    """Train, or resume, the second run, on train + validation for the best number of epochs."""
    start_time, folder = time.perf_counter(), first_summary.run / _REFIT
    if processes.run_on_rank0(lambda: RunFolder.holds_run(folder)):
        summary = _resume(processes, folder, None, {}, quiet, start_time)
    else:
        config = load_config(first_summary.run / "config.yaml")
        without_epochs = not Supports.of(load_model(config.model.name)).gradient_steps
        overrides = {} if without_epochs else {"epochs": first_summary.best_epoch, "patience": None}
        config = config.model_copy(
            update={
                "out": folder,
                "data": config.data.model_copy(update={"refit": True}),
                "training": config.training.model_copy(update=overrides),
            }
        )
        summary = _train_new(processes, config, table, quiet, start_time, plan=plan)
    fields = ("epochs", "best_epoch", "valid", "test", "stopped_by")
    selection = {name: getattr(first_summary, name) for name in fields}
    return replace(summary, selected={"run": str(first_summary.run), **selection})


def _existing_run(processes: Processes, out: Path | None, resume_auto: bool) -> Path | None:
    """The run folder to resume, or None to start a new run.

    After torchrun has restarted the processes, it is the run that they created before. With
    ``--resume auto``, it is ``--out``, if it holds a run.
    """

    def find() -> str | None:
        created = processes.load_job_state("run") if processes.restarts else None
        path = created or (str(out) if resume_auto else None)
        return path if path is not None and RunFolder.holds_run(Path(path)) else None

    existing = processes.run_on_rank0(find)
    return None if existing is None else Path(existing)


def _train_new(
    processes: Processes,
    config: RunConfig,
    table: object | None,
    quiet: bool,
    start_time: float,
    will_refit: bool = False,
    plan: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Train a new run. will_refit: the data must then have a validation part."""
    device = processes.device.type
    with new_run(processes, config, table, quiet, start_time, will_refit, plan, overwrite) as setup:
        path = setup.folder.path
        try:
            return _run(replace(setup, callbacks=callbacks), None)
        except RuntimeError as error:
            if not falls_back_to_cpu(error, device, config.device, processes.world):
                raise
            write_stderr(fallback_message(error, device, str(path)))
    return resume(path, changes={"device": "cpu"}, quiet=quiet, callbacks=callbacks)


def resume(
    run: Path,
    *,
    checkpoint: str | None = None,
    out: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    quiet: bool = False,
    until: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Resume a run from its newest valid checkpoint or a named one.

    out: resume a copy of the run in this new folder. changes: new values of options. until: stop
    after this epoch at the latest, on the schedule of the whole run. callbacks: after each epoch.
    """
    options: dict[str, Any] = {"until": until, "callbacks": callbacks}
    configure_process()
    start_time = time.perf_counter()
    RunFolder.open(run, lock=False)  # raises if it is not a run folder
    config = with_changes(load_config(run / "config.yaml"), changes or {})
    with Processes.join(config.device, config.distributed) as processes:
        # after torchrun has restarted the processes, continue from the newest checkpoint
        restarted = processes.restarts > 0 and processes.load_job_state("run") == str(out or run)
        if out is not None:
            if not restarted:
                copied = processes.run_on_rank0(
                    lambda: copy_run(run, out, checkpoint), "copying the run"
                )
                processes.save_job_state("run", copied)
            run = out
        name = None if restarted else checkpoint
        try:
            return _resume(processes, run, name, changes or {}, quiet, start_time, **options)
        except RuntimeError as error:
            device = processes.device.type
            if not falls_back_to_cpu(error, device, config.device, processes.world):
                raise
            write_stderr(fallback_message(error, device, str(run)))
    return resume(run, changes={**(changes or {}), "device": "cpu"}, quiet=quiet, **options)


def _resume(
    processes: Processes,
    run: Path,
    checkpoint_name: str | None,
    changes: Mapping[str, Any],
    quiet: bool,
    start_time: float,
    requested: tuple[RunConfig, object | None] | None = None,
    until: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Resume a run; the arguments are those of :func:`resume`.

    requested: with ``--resume auto``, the configuration and table of the command. Raises if their
    data differ from those of the run.
    """
    locked: list[RunFolder] = []  # the locked folder on rank 0, empty on the others
    warnings: list[str] = []
    processes.run_on_rank0(
        lambda: locked.append(RunFolder.open(run, lock=True)), "locking the run folder"
    )
    with locked[0] if locked else RunFolder(run, lock=None) as folder:
        saved = load_config(run / "config.yaml")
        resolved = resolve_config(with_changes(saved, changes), processes)
        config, device = resolved.config, processes.device
        dataset = processes.run_on_all_ranks("reading the data", lambda: load_stored(folder.data))
        processes.run_on_rank0(lambda: refuse_changed_stored_data(folder, dataset))
        if requested is not None:
            warnings += processes.run_on_rank0(
                lambda: refuse_changed_source(run, *requested, dataset)
            )
        require_same_data(processes, dataset)
        prepare_torch(config.threads, config.training.deterministic, device, processes.launch)
        model = processes.run_on_all_ranks(
            "building the model",
            lambda: build_model(config, dataset, device, for_training=True, processes=processes),
        )
        phase_data = training_dataset(dataset, folder.data)  # without rows that are left out
        phases = model.phases(phase_data, config.training)
        shards = sharded_tensors(model, phases)

        def choose() -> Checkpoint | None:
            chosen = checkpoint_to_resume(folder, checkpoint_name, warnings.append, shards)
            if checkpoint_name is not None:
                # if torchrun restarts the processes, resume() then takes the newest checkpoint
                processes.save_job_state("run", str(run))
            return chosen

        checkpoint = shared_checkpoint(processes, choose, shards)
        if checkpoint is None:
            apply_initial_weights(model, initial_checkpoint(processes, config), dataset)
            phases = model.phases(phase_data, config.training)  # they may depend on the weights
        changed = processes.run_on_rank0(lambda: changed_options(run, checkpoint, saved, config))
        tasks = ranking_tasks(dataset, config)
        setup = RunSetup(
            processes, resolved, dataset, model, phases, tasks, folder, quiet, start_time, until,
            callbacks, changed,
        )  # fmt: skip
        return _run(setup, checkpoint, warnings)


def _run(
    setup: RunSetup, checkpoint: Checkpoint | None, warnings: list[str] | None = None
) -> Summary:
    """Train and return the summary. warnings: those of resuming; None for a new run."""
    with open_run(setup, checkpoint, warnings) as training:
        if warnings is not None:  # resumed: open_run has recorded the changed options
            write = setup.folder.write_config
            setup.processes.run_on_rank0(lambda: write(setup.resolved.config))
        return training.summarize(training.trainer.run(setup.until))

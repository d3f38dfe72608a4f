"""Prepare a new run: load the data, build the model, create the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.build import (
    build_model,
    load_data,
    ranking_tasks,
)
from hasten.config import RunConfig
from hasten.config_loading.data_defaults import with_data_defaults
from hasten.data.splits import require_validation
from hasten.data.store import describe_data, save_dataset, stored_files
from hasten.data.tables import AnyDataset
from hasten.distributed.device import prepare_torch
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import require_same_data, require_same_weights
from hasten.evaluation.protocols import AnyTask
from hasten.initial_weights import apply_initial_weights, initial_checkpoint
from hasten.models.interface import Model
from hasten.objectives.base import Phase
from hasten.runs.environment import describe_environment
from hasten.runs.run_folder import PLAN, RunFolder, remove_run
from hasten.runs.trackers.open import require_trackers
from hasten.training.precision import refuse_emulated_fp16
from hasten.training.resolve_config import resolve_config
from hasten.training_run import RunSetup


@contextmanager
def new_run(
    processes: Processes,
    config: RunConfig,
    table: object | None,
    quiet: bool,
    start_time: float,
    refit: bool = False,
    plan: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[RunSetup]:
    """Prepare a new run up to its first step; its folder is locked within this context.

    refit: a refit follows, so require a validation part. plan: predicted memory and time.
    overwrite: delete the run that ``config.out`` holds, after everything else has been checked.
    """
    device = processes.device
    refuse_emulated_fp16(config.training, device)
    require_trackers(config.logging)
    dataset = processes.run_on_all_ranks("reading the data", lambda: load_data(config, table))
    if refit:  # fail before anything is trained
        processes.run_on_all_ranks("checking the split", lambda: require_validation(dataset))
    require_same_data(processes, dataset)
    config, notes = with_data_defaults(config, dataset, processes.world)
    resolved = resolve_config(config, processes)
    resolved = replace(resolved, notes=(*notes, *resolved.notes))
    config = resolved.config
    weights = initial_checkpoint(processes, config)
    prepare_torch(config.threads, config.training.deterministic, device, processes.launch)

    def build() -> tuple[
        Model, Sequence[Phase], tuple[AnyTask, AnyTask | None], Sequence[str]
    ]:  # fmt: skip
        model = build_model(config, dataset, device, for_training=True, processes=processes)
        weight_notes = apply_initial_weights(model, weights, dataset)
        # all validation happens before the run folder is created
        return (
            model,
            model.phases(dataset, config.training),
            ranking_tasks(dataset, config),
            weight_notes,
        )

    model, phases, tasks, weight_notes = processes.run_on_all_ranks("building the model", build)
    resolved = replace(resolved, notes=(*resolved.notes, *weight_notes))
    require_same_weights(processes, model, "at the start")
    created: list[RunFolder] = []  # on rank 0 only

    def create_folder() -> str:
        if overwrite and config.out is not None:
            remove_run(config.out)

        def write_plan(folder: RunFolder) -> RunConfig:
            if plan is not None:
                folder.write_json(PLAN, plan)
            return config

        folder = create_run(config, dataset, [] if plan is None else [PLAN], write_plan)
        created.append(folder)
        processes.save_job_state("run", str(folder.path))
        return str(folder.path)

    path = Path(processes.run_on_rank0(create_folder, "making the run folder"))
    # only rank 0 holds the lock of the folder
    with created[0] if created else RunFolder(path, lock=None) as folder:
        yield RunSetup(
            processes, resolved, dataset, model, phases, tasks, folder, quiet, start_time
        )


def create_run(
    config: RunConfig,
    dataset: AnyDataset,
    files: Sequence[str],
    write_files: Callable[[RunFolder], RunConfig],
) -> RunFolder:
    """Create and lock the folder of a new run, with its data and its configuration.

    files: the names of the further files. write_files: writes them and returns the configuration,
    which is written last. If anything fails, the folder is removed.
    """
    stored = [f"data/{name}" for name in stored_files(dataset)]
    folder = RunFolder.create(config.out, config.model.name, dataset.name, [*stored, *files])
    try:
        folder.write_json("environment.json", describe_environment())
        save_dataset(dataset, folder.data)
        folder.write_json("data.json", describe_data(dataset))
        folder.write_config(write_files(folder))
    except BaseException:
        folder.discard()
        raise
    return folder

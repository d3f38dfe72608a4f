"""Load a trained model from its run folder, and evaluate it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa
import torch

from hasten.build import build_model, evaluate_task, load_phase_states, load_weights
from hasten.config import RunConfig
from hasten.config_loading.build import load_config
from hasten.config_loading.other_libraries import peer_notice, refuse_contradiction, with_peer
from hasten.console import write_stderr
from hasten.data.store import load_stored
from hasten.data.tables import PART_NAMES, AnyDataset, Dataset
from hasten.distributed.device import prepare_torch, resolve_device
from hasten.distributed.processes import Processes
from hasten.errors import RunFolderError, UsageError
from hasten.evaluation.beyond_accuracy import list_figures
from hasten.evaluation.grouped_metrics import By, check_grouping, grouped_metrics
from hasten.evaluation.protocols import ranking_task
from hasten.evaluation.query_tiles import MAX_TILE_ROWS, TileMemoryRetry
from hasten.models.interface import Model
from hasten.runs.allocator import configure_process
from hasten.runs.checkpoint import read_checkpoint
from hasten.runs.resuming import named_checkpoint, with_changes
from hasten.runs.run_folder import RunFolder
from hasten.training.memory.device import release_memory


@dataclass(frozen=True)
class LoadedRun:
    """The model of a run with the weights of a checkpoint, and its data."""

    path: Path
    config: RunConfig
    model: Model
    dataset: AnyDataset
    device: torch.device


def load_run(run: Path, *, checkpoint: str = "best", device: str = "auto") -> LoadedRun:
    """Load the model of a run in evaluation mode."""
    configure_process()
    with RunFolder.open(run, lock=False) as folder:
        config = load_config(folder.path / "config.yaml")
        dataset = load_stored(folder.data)
        target = resolve_device(device)
        prepare_torch(config.threads, config.training.deterministic, target)
        model = build_model(config, dataset, target)
        stored = read_checkpoint(named_checkpoint(folder, checkpoint))
        load_weights(model, stored)
        load_phase_states(model, dataset, config, stored)
        return LoadedRun(folder.path, config, model.eval(), dataset, target)


def evaluate(
    run: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    checkpoint: str = "best",
    device: str | None = None,
    by: str | None = None,
    beyond: int | None = None,
    part: Literal["valid", "test"] | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run, possibly with another protocol.

    part: the only part to evaluate; None: validation, and test unless ``evaluation.test`` is off.
    by: also return metrics of groups, as ``groups`` (:mod:`hasten.evaluation.grouped_metrics`).
    beyond: a number of items; also return what a recommender puts into lists of this length, as
    ``beyond_accuracy`` by part (:mod:`hasten.evaluation.beyond_accuracy`).
    """
    start_time = time.perf_counter()
    configure_process()
    RunFolder.open(run, lock=False)
    distributed = load_config(run / "config.yaml").distributed
    with Processes.join(device or "auto", distributed) as processes:
        target = str(processes.device)
        loaded = processes.run_on_all_ranks(
            "loading the run", lambda: load_run(run, checkpoint=checkpoint, device=target)
        )
        config = with_changes(
            loaded.config,
            with_peer(loaded.config, changes or {}),
            lambda name: name.startswith("evaluation."),
        )
        refuse_contradiction(config)
        if config.evaluation.like is not None and processes.is_rank0:
            write_stderr(peer_notice(config, loaded.config))
        if by is not None:
            check_grouping(by, loaded.dataset)
        if beyond is not None and not isinstance(loaded.dataset, Dataset):
            raise UsageError(
                f"--beyond-accuracy is for lists of items; {config.model.name} completes a "
                "knowledge graph"
            )
        parts, groups, figures = {}, [], {}
        memory_retry = TileMemoryRetry(partial(release_memory, processes.device))
        default_parts = ("valid", "test") if config.evaluation.test else ("valid",)
        for name in default_parts if part is None else (part,):
            which = PART_NAMES.index(name)
            task = ranking_task(loaded.dataset, which, config.evaluation, config.seed)
            if len(task.queries):
                parts[name] = evaluation = evaluate_task(
                    loaded.model, task, config, processes, memory_retry=memory_retry
                )
                if by is not None and evaluation.rank_counts is not None:
                    metrics, data = config.evaluation.metrics, loaded.dataset
                    groups.append(
                        grouped_metrics(task, evaluation.rank_counts, metrics, data, cast(By, by))
                    )
                if beyond is not None:
                    figures[name] = list_figures(loaded.model, task, loaded.dataset, beyond)
        if memory_retry.rows < MAX_TILE_ROWS and processes.is_rank0:
            write_stderr(f"memory ran out: ranked {memory_retry.rows} queries at a time")
    if not parts:
        missing = f"no {part} events" if part else f"no {' or '.join(default_parts)} events"
        raise RunFolderError(f"{run}: its data have {missing} to rank")
    return {
        "run": str(run),
        "model": config.model.name,
        "data": loaded.dataset.name,
        "checkpoint": checkpoint,
        "valid": parts["valid"].values if "valid" in parts else {},
        "test": parts["test"].values if "test" in parts else {},
        "protocol": list(parts.values())[-1].protocol,
        "devices": processes.world,
        "seconds": time.perf_counter() - start_time,
        **({} if by is None else {"by": by, "groups": pa.concat_tables(groups)}),
        **({} if beyond is None else {"beyond_accuracy": figures}),
    }

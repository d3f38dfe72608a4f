"""Metrics per user or triple of a finished run, cached in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from hasten.arrays import Int64
from hasten.atomic_write import atomic_path
from hasten.comparison.verdict import Part
from hasten.data.tables import PART_NAMES
from hasten.errors import RunFolderError, os_errors_as
from hasten.evaluation.completion import CompletionTask
from hasten.evaluation.metrics import Float64
from hasten.evaluation.protocols import AnyTask, ranking_task
from hasten.evaluation.query_tiles import TileMemoryRetry
from hasten.evaluation.ranker import evaluate, values_of_one_treatment
from hasten.loaded_run import load_run
from hasten.ops.ranking.rank_all import RankCounts
from hasten.runs.manifest import MANIFEST
from hasten.training.memory.device import release_memory


@dataclass(frozen=True, eq=False)
class UnitValues:
    """Metrics before averaging. units: int64 [U] users or triples of the part, in order.

    sums, weights: by metric, float64 [U]; the metric is the ratio of their sums over the units.
    """

    protocol: str
    units: Int64
    sums: dict[str, Float64]
    weights: dict[str, Float64]

    def mean(self, metric: str) -> float:
        """The metric of all units."""
        return float(self.sums[metric].sum() / self.weights[metric].sum())


def unit_values(
    run: Path, part: Part, metrics: Sequence[str], cache: Path | None, device: str = "auto"
) -> UnitValues:
    """Rank the part with the best checkpoint of a run, or read what an earlier call has found.

    cache: a folder for the values; they are found again as long as checkpoint, configuration, part
    and metrics are the same. Raises RunFolderError if the part is empty.
    """
    file = None if cache is None else cache / f"{_key(run, part, metrics)}.npz"
    if file is not None and (cached := _read(file, metrics)) is not None:
        return cached
    loaded = load_run(run, device=device)
    task = ranking_task(
        loaded.dataset, PART_NAMES.index(part), loaded.config.evaluation, loaded.config.seed
    )
    if not len(task.queries):
        raise RunFolderError(f"{run}: its data have no {part} part to compare")
    target = torch.device(loaded.device)
    memory_retry = TileMemoryRetry(partial(release_memory, target))
    evaluation = evaluate(loaded.model, task, metrics, device=target, memory_retry=memory_retry)
    assert evaluation.rank_counts is not None
    values = _by_unit(task, evaluation.rank_counts, metrics)
    if file is not None:
        _write(file, values)
    return values


def _key(run: Path, part: Part, metrics: Sequence[str]) -> str:
    """Changes with the checkpoint, the configuration, the part and the metrics."""
    digest = hashlib.sha256(json.dumps([part, list(metrics)]).encode())
    digest.update((run / "best" / MANIFEST).read_bytes())
    digest.update((run / "config.yaml").read_bytes())
    return digest.hexdigest()[:16]


def _by_unit(task: AnyTask, ranks: RankCounts, metrics: Sequence[str]) -> UnitValues:
    """One value a user; one a triple, which has two targets: its head and its tail."""
    per_query = values_of_one_treatment(task, ranks, metrics, task.masked)
    if isinstance(task, CompletionTask):
        units, unit = np.unique(task.triple, return_inverse=True)
    else:
        units, unit = task.queries.user, np.arange(len(task.queries))

    def total(values: Float64) -> Float64:
        return np.bincount(unit, weights=values, minlength=len(units)).astype(np.float64)

    return UnitValues(
        task.protocol.text(),
        units,
        {name: total(each.sums) for name, each in per_query.items()},
        {name: total(each.counts.astype(np.float64)) for name, each in per_query.items()},
    )


def _write(file: Path, values: UnitValues) -> None:
    arrays: dict[str, Any] = {f"sums {name}": sums for name, sums in values.sums.items()}
    arrays |= {f"weights {name}": weights for name, weights in values.weights.items()}
    with os_errors_as(RunFolderError, "cannot be written", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary, temporary.open("wb") as stream:
            np.savez(stream, units=values.units, protocol=np.array(values.protocol), **arrays)


def _read(file: Path, metrics: Sequence[str]) -> UnitValues | None:
    """The values of an earlier call; None if there are none, or they are damaged."""
    with (
        suppress(OSError, EOFError, ValueError, LookupError, BadZipFile),
        file.open("rb") as stream,
        np.load(stream, allow_pickle=False) as stored,
    ):
        return UnitValues(
            str(stored["protocol"]),
            stored["units"],
            {name: stored[f"sums {name}"] for name in metrics},
            {name: stored[f"weights {name}"] for name in metrics},
        )
    return None

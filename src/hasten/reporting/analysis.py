"""Measurements of a trained model for a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa

from hasten.data.tables import PART_NAMES, Dataset, KnowledgeGraph
from hasten.errors import HastenError
from hasten.evaluation.beyond_accuracy import beyond_accuracy, recommended_lists
from hasten.evaluation.grouped_metrics import By, grouped_metrics
from hasten.evaluation.metrics import parse_metric
from hasten.evaluation.protocols import AnyTask, RankingTask, ranking_task
from hasten.evaluation.query_tiles import TileMemoryRetry
from hasten.evaluation.ranker import evaluate
from hasten.loaded_run import LoadedRun, load_run
from hasten.reporting.blocks import Scatter
from hasten.reporting.embedding_map import embedding_map
from hasten.reporting.examples import Example, predicted, recommended
from hasten.training.memory.device import release_memory

Part = Literal["valid", "test"]
#: the length of recommended lists if no metric has a cut-off
_LENGTH = 10


@dataclass
class Analysis:
    """The findings on one part of the data. protocol: empty if the part has no events.

    groups: a table for each kind of groups; beyond: figures beyond accuracy; weights: parameters
    and bytes by module; notes: what could not be measured, and why.
    """

    part: Part
    protocol: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    groups: dict[By, pa.Table] = field(default_factory=dict)
    beyond: dict[str, float] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    map: Scatter | None = None
    weights: list[tuple[str, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def analyze(run: Path, part: Part, checkpoint: str, device: str, points: int) -> Analysis:
    """Load the model and measure it. points: of the map. Errors become notes."""
    analysis = Analysis(part)
    try:
        loaded = load_run(run, checkpoint=checkpoint, device=device)
        analysis.weights = _weights(loaded)
        analysis.map, note = embedding_map(loaded, points)
        analysis.notes += [note] if note else []
        config = loaded.config
        task = ranking_task(loaded.dataset, PART_NAMES.index(part), config.evaluation, config.seed)
        if len(task.queries):
            _measure(analysis, loaded, task)
        else:
            analysis.notes.append(f"The data have no {part} part to measure the model on.")
    except HastenError as error:
        analysis.notes.append(f"The model was not measured: {error}")
    return analysis


def _measure(analysis: Analysis, loaded: LoadedRun, task: AnyTask) -> None:
    metrics, dataset = loaded.config.evaluation.metrics, loaded.dataset
    analysis.protocol = task.protocol.text()
    memory_retry = TileMemoryRetry(partial(release_memory, loaded.device))
    ranked = evaluate(loaded.model, task, metrics, device=loaded.device, memory_retry=memory_retry)
    assert ranked.rank_counts is not None
    analysis.metrics = ranked.values
    kinds: tuple[By, ...] = ("popularity", "history")
    if isinstance(dataset, KnowledgeGraph):
        kinds = ("relation", "direction")
    for by in kinds:
        analysis.groups[by] = grouped_metrics(task, ranked.rank_counts, metrics, dataset, by)
    if isinstance(dataset, Dataset):
        assert isinstance(task, RankingTask)
        cuts = [parse_metric(name).k for name in metrics]
        k = next((cut for cut in cuts if cut is not None), _LENGTH)
        lists = recommended_lists(loaded.model, task, k)
        analysis.beyond = beyond_accuracy(lists, task, dataset, k)
        analysis.examples = recommended(dataset, task, lists)
    else:
        analysis.examples = predicted(loaded, task, PART_NAMES.index(analysis.part))


def _weights(loaded: LoadedRun) -> list[tuple[str, int, int]]:
    """Parameters and bytes of each module of the model, the largest first; shared ones once."""
    sizes: dict[str, list[int]] = {}
    for name, value in loaded.model.named_parameters():
        total = sizes.setdefault(name.partition(".")[0], [0, 0])
        total[0] += value.numel()
        total[1] += value.numel() * value.element_size()
    rows = [(name, count, size) for name, (count, size) in sizes.items()]
    return sorted(rows, key=lambda row: -row[2])

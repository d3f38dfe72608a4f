"""Evaluate a model on a ranking task.

Metrics do not depend on batching or the number of processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np
import torch

from hasten.evaluation.embedding_diagnostics import EmbeddingDiagnostics, diagnose_nodes
from hasten.evaluation.metrics import PerQuery, metrics_per_query, parse_metric
from hasten.evaluation.protocols import AnyTask, RankingTask
from hasten.evaluation.query_tiles import Tile, TileMemoryRetry, TileShape, make_tiles
from hasten.evaluation.tile_inputs import TileInputs, tiles_by_transfer
from hasten.models.interface import Model
from hasten.ops.ranking.candidate_shard import CandidateShard
from hasten.ops.ranking.rank_all import RankCounts
from hasten.ops.transfer import to_device


@dataclass(frozen=True)
class Evaluation:
    """Metrics and how they were measured. ``values`` is empty if the evaluation was stopped.

    values: by name; a full ranking of items also has ``NAME/kept`` or ``NAME/masked``, the metric
    NAME with the opposite treatment of the history. rank_counts: for each target, how many
    candidates score higher and how many tie, and how many of these are excluded (such as the
    history). diagnostics: of the node embeddings, for models with
    ``diagnosed_embeddings``. margins: half-width of the 95 % confidence interval of each
    metric, if only a sample of users or triples is ranked.
    """

    values: dict[str, float]
    protocol: str
    queries: int
    seconds: float
    rank_counts: RankCounts | None = None
    diagnostics: EmbeddingDiagnostics | None = None
    margins: dict[str, float] = field(default_factory=dict)

    @property
    def was_stopped(self) -> bool:
        """Whether it ended before all targets were ranked, so that there are no metrics."""
        return not self.values

    def text(self) -> str:
        """The metrics for a log line, without those of the opposite treatment of the history."""
        shown = {name: f"{value:.4f}" for name, value in self.values.items() if "/" not in name}
        shown |= {name: f"{shown[name]} ± {self.margins[name]:.4f}" for name in self.margins}
        return "  ".join(f"{name} {value}" for name, value in shown.items())


def evaluate(
    model: Model,
    task: AnyTask,
    metrics: Sequence[str],
    *,
    device: torch.device,
    stop: Callable[[], bool] | None = None,
    process_rank: int = 0,
    world_size: int = 1,
    merge: Callable[[RankCounts | None], RankCounts | None] | None = None,
    memory_retry: TileMemoryRetry | None = None,
    candidate_shard: CandidateShard | None = None,
) -> Evaluation:
    """Rank all targets of the task and compute the metrics.

    device: the device of the model. stop: called before each tile (a fixed group of queries); True
    stops the evaluation. process_rank, world_size: this process ranks every ``world_size``-th tile
    and counts 0 for other targets; merge: sums the counts over all processes. memory_retry: if
    memory runs out, retries with fewer queries at a time; None: the error is raised.
    candidate_shard: with sharded tables, the candidates that this process holds; None: all. Then
    process_rank and world_size keep their defaults: every process ranks all targets among its own
    candidates, and merge sums the counts.
    Raises ConfigurationError for an unknown metric before anything is ranked.
    """
    for name in metrics:
        parse_metric(name)
    start_time = time.perf_counter()
    shape = TileShape.of(device, len(task.queries), task.item_count)
    tiles = make_tiles(task.queries.lengths, shape.rows)[process_rank::world_size]

    def rank_and_diagnose() -> tuple[RankCounts | None, EmbeddingDiagnostics | None]:
        with scoring(model):
            counts = _rank(model, task, tiles, shape, device, stop, memory_retry, candidate_shard)
            diagnosed = model.diagnosed_embeddings() if counts is not None else None
            return counts, None if diagnosed is None else diagnose_nodes(*diagnosed)

    if memory_retry is None:
        counts, diagnostics = rank_and_diagnose()
    else:
        # If memory runs out while a tile is ranked, _rank retries that tile. If it runs out
        # elsewhere, in ``encoded_once`` or in the diagnostics, this repeats the whole evaluation.
        # Before either retry, cached memory is freed and the number of queries that are scored at
        # a time is halved, and the candidates too, so their scores need a quarter of the memory
        counts, diagnostics = memory_retry.attempt(rank_and_diagnose, shape.rows)
    if merge is not None:
        counts = merge(counts)
    values, margins = {}, {}
    if counts is not None:
        counts = counts.cpu()
        by_metric = values_by_query(task, counts, metrics)
        values = {name: per_query.mean() for name, per_query in by_metric.items()}
        if task.protocol.sampled_queries is not None:
            # the two queries of a sampled triple are not independent: margins go by triple
            unit = None if isinstance(task, RankingTask) else task.triple
            margins = {name: by_metric[name].margin(unit) for name in metrics}
    seconds = time.perf_counter() - start_time
    protocol = task.protocol.text()
    return Evaluation(values, protocol, len(task.queries), seconds, counts, diagnostics, margins)


def _rank(
    model: Model,
    task: AnyTask,
    tiles: Sequence[Tile],
    shape: TileShape,
    device: torch.device,
    stop: Callable[[], bool] | None,
    memory_retry: TileMemoryRetry | None,
    candidate_shard: CandidateShard | None,
) -> RankCounts | None:
    """The counts of each target, as in :attr:`Evaluation.rank_counts`. None if stopped.

    At most one of memory_retry and candidate_shard is given: with sharded tables, a process cannot
    retry alone.
    """
    counts_shape = len(fields(RankCounts)), len(task.targets.items)
    counts = torch.zeros(counts_shape, dtype=torch.int64, device=device)
    for group in tiles_by_transfer(task, tiles, device):
        inputs, counts_by_tile = None, []
        for number in range(len(group)):
            if stop is not None and stop():
                return None
            # built here and not before the loop: if the evaluation is stopped before this group,
            # its inputs are not built or copied
            if inputs is None:
                inputs = to_device(TileInputs.of(task, group), device)
            tile = inputs.slice(number * shape.rows, (number + 1) * shape.rows)
            if memory_retry is None:
                tile_counts = _rank_queries(model, task, tile, shape, candidate_shard)
            else:
                function = partial(_rank_tile, model, task, tile, shape, memory_retry)
                tile_counts = memory_retry.attempt(function, shape.rows)
            counts_by_tile.append(torch.stack(list(vars(tile_counts).values())))
        if inputs is not None:
            # Only the last tile of all has padding queries, at its end. The columns of their
            # targets come after the len(target_numbers) real ones, and the slice drops them
            group_counts = torch.cat(counts_by_tile, 1)
            counts[:, inputs.target_numbers] = group_counts[:, : len(inputs.target_numbers)]
    return RankCounts(*counts)


def values_by_query(
    task: AnyTask, counts: RankCounts, metrics: Sequence[str]
) -> dict[str, PerQuery]:
    """The metrics of every query, before averaging.

    For full rankings of items also those with the opposite treatment of the history, under
    ``NAME/kept`` or ``NAME/masked``.
    """
    values = values_of_one_treatment(task, counts, metrics, task.masked)
    if isinstance(task, RankingTask) and task.excluded is not None:
        other = "kept" if task.masked else "masked"
        others = values_of_one_treatment(task, counts, metrics, not task.masked)
        values |= {f"{name}/{other}": per_query for name, per_query in others.items()}
    return values


def values_of_one_treatment(
    task: AnyTask, counts: RankCounts, metrics: Sequence[str], masked: bool
) -> dict[str, PerQuery]:
    """The metrics of every query, or target in link prediction, with one treatment of the history.

    masked: leave the excluded candidates (such as the user's history) out of the ranking.
    """
    counts = counts.masked() if masked else counts
    higher, tied = counts.higher.cpu().numpy(), counts.tied.cpu().numpy()
    competitors = task.competitors(masked)
    # targets that count as misses in filtered rankings: entities unseen in training
    if task.rank_last is not None and masked:
        higher = np.where(task.rank_last, competitors, higher)
        tied = np.where(task.rank_last, 0, tied)
    return metrics_per_query(metrics, task.offsets, higher, tied, competitors, task.protocol.ties)


@contextmanager
def scoring(model: Model) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and restore the mode of every module.

    Models with ``encoded_once`` encode their graph here, once for all queries.
    """
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        with torch.inference_mode(), model.encoded_once():
            yield
    finally:
        for part in training:
            part.training = True


def _rank_tile(
    model: Model, task: AnyTask, tile: TileInputs, shape: TileShape, memory_retry: TileMemoryRetry
) -> RankCounts:
    """The counts of the targets of a tile; those of padding queries come last, to be dropped."""
    rows = min(memory_retry.rows, shape.rows)
    parts = [tile.slice(start, start + rows) for start in range(0, shape.rows, rows)]
    counts = [vars(_rank_queries(model, task, queries, shape)).values() for queries in parts]
    if memory_retry.rows > 1:  # one query cannot be divided further
        memory_retry.check_memory()
    return RankCounts(*(torch.cat(each) for each in zip(*counts, strict=True)))


def _rank_queries(
    model: Model,
    task: AnyTask,
    queries: TileInputs,
    shape: TileShape,
    candidate_shard: CandidateShard | None = None,
) -> RankCounts:
    """The counts of the targets of these queries: a tile, or a part of one if memory ran out.

    A block of scores is [queries, columns]. For a part of a tile it has proportionally fewer
    columns too, so half the queries need a quarter of the memory.
    """
    columns = max(1, shape.columns * len(queries) // shape.rows)
    return queries.rank(model.scorer(task.queries.take(queries.numbers)), columns, candidate_shard)

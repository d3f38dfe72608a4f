"""The one ranker: any model, any ranking task, metrics that no batching or sharing changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from hasten.arrays import ragged_positions
from hasten.evaluation.candidate_ranges import SpanScorer
from hasten.evaluation.completion import CompletionTask
from hasten.evaluation.embedding_diagnostics import Health, health_of
from hasten.evaluation.metrics import PerQuery, metrics_per_query, parse_metric
from hasten.evaluation.protocols import AnyTask
from hasten.evaluation.query_tiles import TILE_ROWS, Tile, make_tiles
from hasten.models.interface import Model
from hasten.ops.ranking.rank_all import Ranks, rank_all, rank_among


@dataclass(frozen=True)
class Evaluation:
    """Metrics with what they mean and cost. ``values`` is empty if the evaluation was stopped.

    ranks: the counts behind the metrics, of all targets; None if stopped. diagnostics: of the
    embeddings of a model that offers them (``diagnosed_embeddings``).
    """

    values: dict[str, float]
    protocol: str
    queries: int
    seconds: float
    ranks: Ranks | None = None
    diagnostics: Health | None = None


def evaluate(
    model: Model,
    task: AnyTask,
    metrics: Sequence[str],
    *,
    device: torch.device,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    part: int = 0,
    parts: int = 1,
    merge: Callable[[Ranks | None], Ranks | None] | None = None,
) -> Evaluation:
    """Rank every target of the task and take the means.

    device: where the model is. stop: asked before every tile of queries; True ends the evaluation
    without values. progress: told the queries done and their total after every tile.
    part, parts, merge: this process's share of the tiles, and what makes the ranks of all of it.
    Raises ConfigurationError for an unknown metric, before anything is ranked.
    """
    for name in metrics:
        parse_metric(name)
    begin = time.perf_counter()
    with scoring(model):
        ranks = _rank(
            model, task, device=device, part=part, parts=parts, stop=stop, progress=progress
        )
        diagnosed = model.diagnosed_embeddings() if ranks else None
        diagnostics = health_of(*diagnosed) if diagnosed is not None else None
    if merge is not None:
        ranks = merge(ranks)
    values = {}
    if ranks is not None:
        values = {name: found.mean() for name, found in per_query(task, ranks, metrics).items()}
    seconds = time.perf_counter() - begin
    protocol = task.protocol.text()
    return Evaluation(values, protocol, len(task.queries), seconds, ranks, diagnostics)


def rank_queries(
    model: Model,
    task: AnyTask,
    *,
    device: torch.device,
    part: int = 0,
    parts: int = 1,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Ranks | None:
    """The counts of all targets [T], 0 for those of other parts; None if stopped.

    part, parts: a process's share of the tiles, dealt out in turn; :func:`merge_ranks` adds them.
    """
    with scoring(model):
        return _rank(
            model, task, device=device, part=part, parts=parts, stop=stop, progress=progress
        )


def _rank(
    model: Model,
    task: AnyTask,
    *,
    device: torch.device,
    part: int,
    parts: int,
    stop: Callable[[], bool] | None,
    progress: Callable[[int, int], None] | None,
) -> Ranks | None:
    tiles = make_tiles(task.queries.lengths)[part::parts]
    total = sum(tile.count for tile in tiles)
    greater = torch.zeros(len(task.targets.items), dtype=torch.int64, device=device)
    equal = torch.zeros_like(greater)
    done = 0
    for tile in tiles:
        if stop is not None and stop():
            return None
        ranks = _rank_tile(model, task, tile)
        pairs, _ = ragged_positions(task.targets.offsets, tile.rows)
        place = torch.from_numpy(pairs).to(device)
        greater[place] = ranks.greater[: len(pairs)]
        equal[place] = ranks.equal[: len(pairs)]
        done += tile.count
        if progress is not None:
            progress(done, total)
    return Ranks(greater, equal)


def merge_ranks(shares: Sequence[Ranks]) -> Ranks:
    """The counts of all parts together: whole numbers, so their order does not matter."""
    return Ranks(
        torch.stack([share.greater for share in shares]).sum(0),
        torch.stack([share.equal for share in shares]).sum(0),
    )


def per_query(task: AnyTask, ranks: Ranks, metrics: Sequence[str]) -> dict[str, PerQuery]:
    """The metrics of every query, in the order of the task's queries; or of every target."""
    greater, equal = ranks.greater.cpu().numpy(), ranks.equal.cpu().numpy()
    competitors = task.competitors
    if task.last is not None:
        greater, equal = np.where(task.last, competitors, greater), np.where(task.last, 0, equal)
    return metrics_per_query(metrics, task.offsets, greater, equal, competitors, task.protocol.ties)


@contextmanager
def scoring(model: Model) -> Iterator[None]:
    """Evaluation mode without gradients; every module's own mode is restored afterwards.

    A model of a whole graph encodes it here, once for all queries (``encoded_once``).
    """
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        with torch.inference_mode(), model.encoded_once():
            yield
    finally:
        for part in training:
            part.training = True


def _rank_tile(model: Model, task: AnyTask, tile: Tile) -> Ranks:
    """Counts of the tile's targets, the fillers' last."""
    scorer = model.scorer(task.queries.take(tile.padded))
    if task.candidates is not None:
        return rank_among(scorer, task.items, task.candidates[tile.padded])
    if isinstance(task, CompletionTask) and task.first is not None and task.end is not None:
        scorer = SpanScorer(scorer, task.first[tile.padded], task.end[tile.padded])
    excluded = None if task.excluded is None else task.excluded.take(tile.padded)
    targets = task.targets.take(tile.padded)
    return rank_all(scorer, TILE_ROWS, task.items, targets, excluded)

"""Metrics from several shares of the queries, as several processes compute them."""

from __future__ import annotations

import torch

from hasten.evaluation.protocols import AnyTask
from hasten.evaluation.ranker import evaluate, values_by_query
from hasten.models.interface import Model
from hasten.ops.ranking.rank_all import RankCounts


def metrics_of_shares(
    model: Model, task: AnyTask, names: list[str], parts: int, device: torch.device
) -> dict[str, float]:
    """Rank every share on its own, add the counts and compute the metrics."""
    shares = []
    for part in range(parts):
        counts = evaluate(
            model, task, (), device=device, process_rank=part, world_size=parts
        ).rank_counts
        assert counts is not None
        shares.append(vars(counts).values())
    merged = RankCounts(*(torch.stack(each).sum(0) for each in zip(*shares, strict=True)))
    values = values_by_query(task, merged, names)
    return {name: per_query.mean() for name, per_query in values.items()}

"""Defaults of HGT that follow from the size of the data, and what ``hasten tune`` searches."""

from __future__ import annotations

from typing import Any

from hasten.config import RunConfig
from hasten.models.data_size import LENGTH, DataSize, run_length
from hasten.models.search_space import Choice, Range, SearchSpace

#: the keys of :func:`defaults_for`
FROM_DATA = (
    *LENGTH, "training.batch_size", "model.self_score", "model.relation_weights"
)  # fmt: skip
_SMALLEST_BATCH, _LARGEST_BATCH = 500, 5000


def defaults_for(size: DataSize, config: RunConfig) -> dict[str, Any]:
    """A hundredth of the links per relation and step, within bounds; 15 to 60 epochs.

    In mode neighbors, whose batches are of nodes, the largest batch.
    """
    batch_size = _LARGEST_BATCH
    if config.given("model.mode", "full") != "neighbors":
        batch_size = min(_LARGEST_BATCH, max(_SMALLEST_BATCH, size.triples // 100))
    batch_size = config.given("training.batch_size", batch_size)
    weighted = config.given("model.decoder", "distmult") == "distmult"
    return {
        **run_length(config, size.triples, 600, (15, 60), batch_size),
        "training.batch_size": batch_size,
        "model.self_score": not config.given("model.exclude_self", False),
        "model.relation_weights": "normal" if weighted else "ones",
    }


#: what ``hasten tune`` searches
SEARCH: SearchSpace = {
    "training.lr": Range(5e-4, 1e-2, log=True),
    "model.hidden": Choice(32, 64, 128),
    "model.layers": Choice(1, 2, 3),
    "model.dropout": Range(0.0, 0.5),
    "model.negatives": Choice(64, 256, 1024),
    "model.contrastive_weight": Range(0.0, 1.0),
}

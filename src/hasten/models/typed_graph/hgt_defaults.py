"""Defaults of HGT that follow from the size of the data, and what ``hasten tune`` searches."""

from __future__ import annotations

from typing import Any

from hasten.config import RunConfig
from hasten.models.data_size import LENGTH, DataSize, run_length
from hasten.models.search_space import Choice, Range, SearchSpace

#: the keys of :func:`defaults_for`
FROM_DATA = (
    *LENGTH,
    "training.batch_size",
    "model.width",
    "model.shallow_width",
    "model.output_dropout",
    "model.n3",
    "model.exclude_self",
    "model.relation_weights",
    "model.contrastive_weight",
)
_SMALLEST_BATCH, _LARGEST_BATCH = 250, 5000
#: above, shallow embeddings and their moments would take more than 1.2 GB
_MOST_SHALLOW = 100_000
#: of embeddings, and of the output of the layers in them
_WIDTH, _ENCODED = 1024, 64


def defaults_for(size: DataSize, config: RunConfig) -> dict[str, Any]:
    """A four-hundredth of the links per relation and step, within bounds; 15 to 60 epochs.

    In mode neighbors, whose batches are of nodes, the largest batch. With an embedding per node as
    input, most of the output is shallow embeddings, regularized by N3 and dropout, up to 100,000
    nodes.
    """
    batch_size = _LARGEST_BATCH
    if config.given("model.mode", "full") != "neighbors":
        batch_size = min(_LARGEST_BATCH, max(_SMALLEST_BATCH, size.triples // 400))
    batch_size = config.given("training.batch_size", batch_size)
    weighted = config.given("model.decoder", "distmult") == "distmult"
    found: dict[str, Any] = {
        **run_length(config, size.triples, 600, (15, 60), batch_size),
        "training.batch_size": batch_size,
        "model.exclude_self": not config.given("model.self_score", False),
        "model.relation_weights": "normal" if weighted else "ones",
    }
    embeds = config.given("model.inputs", "embeddings") == "embeddings"
    if embeds and size.entities <= _MOST_SHALLOW:
        width = config.given("model.width", _WIDTH)
        keys = "model.contrastive_type", "model.contrastive_relations"
        found |= {
            "model.width": width,
            "model.shallow_width": max(0, width - _ENCODED),
            "model.output_dropout": 0.1,
            "model.n3": 0.01,
            "model.contrastive_weight": 0.5 if any(map(config.gives, keys)) else 0.0,
        }
    return found


#: what ``hasten tune`` searches
SEARCH: SearchSpace = {
    "training.lr": Range(5e-4, 1e-2, log=True),
    "model.hidden": Choice(32, 64, 128),
    "model.layers": Choice(1, 2, 3),
    "model.output_dropout": Range(0.0, 0.5),
    "model.n3": Range(1e-4, 1e-1, log=True),
    "model.negatives": Choice(64, 256, 1024),
    "model.contrastive_weight": Range(0.0, 1.0),
}

"""Defaults of HGT that follow from the size of the data, and what ``hasten tune`` searches."""

from __future__ import annotations

from typing import Any

from hasten.config import RunConfig
from hasten.models.data_size import LENGTH, MANY_ENTITIES, DataSize, run_length
from hasten.models.search_space import Choice, Range, SearchSpace
from hasten.models.typed_graph.hgt_options import HGTOptions

#: the keys of :func:`defaults_for`
FROM_DATA = (
    *LENGTH,
    "training.schedule",
    "training.average",
    "training.batch_size",
    "model.relation_weights",
    "model.width",
    "model.hidden",
    "model.layers",
    "model.heads",
    "model.negatives",
    "model.label_smoothing",
    "model.dropout",
    "model.shallow_width",
    "model.query_dropout",
    "model.filter_negatives",
    "model.n3",
    "model.exclude_self",
    "model.self_score",
    "model.contrastive_weight",
)
_LARGEST_BATCH = 5000
#: triples below which a graph is small: validation falls with the smallest batches and layers
_SMALL = 20_000
#: triples from which on more negatives rank better
_MANY = 100_000
#: width of the single layer beside shallow embeddings, and of both together
_NARROW, _WIDE = 8, 1024


def defaults_for(size: DataSize, config: RunConfig) -> dict[str, Any]:
    """Batches are a share of the links, per relation, within bounds; 10 to 60 epochs.

    With shallow embeddings batches are smaller and the weights are averaged; unless they are beside
    a narrow layer, the learning rate is constant. In mode neighbors, whose batches are of nodes, a
    batch has the upper bound.
    """
    is_narrow, embeddings = _embeddings(size, config)
    shallow = embeddings["model.shallow_width"] > 0
    part, smallest, steps, fewest = (768, 125, 1200, 10) if shallow else (200, 500, 600, 15)
    if is_narrow:
        fewest = 15
    if shallow and size.triples < _SMALL:
        smallest = 250
    batch_size = _LARGEST_BATCH
    if config.given("model.mode", "full") != "neighbors":
        batch_size = min(_LARGEST_BATCH, max(smallest, size.triples // part))
    batch_size = config.given("training.batch_size", batch_size)
    length = run_length(config, size.triples, steps, (fewest, 60), batch_size)
    weighted = config.given("model.decoder", "distmult") == "distmult"
    constant = shallow and not is_narrow and not config.gives("training.min_lr")
    return {
        **length,
        "training.schedule": "constant" if constant else "cosine",
        "training.average": min(2, length["training.epochs"] / 5) if shallow else None,
        "training.batch_size": batch_size,
        "model.relation_weights": "normal" if weighted else "ones",
        **embeddings,
    }


def _embeddings(size: DataSize, config: RunConfig) -> tuple[bool, dict[str, Any]]:
    """Whether there is a narrow layer, and the options of the embeddings.

    What the layers leave of the width is a second embedding of each node, with its regularizers.

    Not beside ``model.inputs=features`` or ``constant``, which are for models without embeddings of
    nodes, and not in mode neighbors, which is for graphs whose table would be too large. Unless the
    graph is small, or a width of either part is given, there is one narrow layer with one head,
    as wider ones and more heads overfit sooner, with dropout and label smoothing, and the shallow
    part is wider, unless there are very many nodes; graphs with many triples have more negatives.
    """
    options = config.model
    assert isinstance(options, HGTOptions)
    trained = options.inputs == "embeddings" and options.mode != "neighbors"
    given = config.gives("model.hidden") or config.gives("model.shallow_width")
    is_narrow = trained and size.triples >= _SMALL and options.width > _NARROW and not given
    hidden = _NARROW if is_narrow else options.hidden
    wide = is_narrow and size.entities <= MANY_ENTITIES
    width = config.given("model.width", _WIDE if wide else options.width)
    rest = max(0, width - hidden) if trained else 0
    shallow = config.given("model.shallow_width", rest)
    excluded = shallow > 0 and not config.given("model.self_score", False)
    excluded = config.given("model.exclude_self", excluded)
    similar = options.contrastive_type or options.contrastive_relations
    softmax, many = options.loss == "softmax", size.triples >= _MANY
    return is_narrow, {
        "model.width": width,
        "model.hidden": hidden,
        "model.layers": 1 if is_narrow else options.layers,
        "model.heads": 1 if is_narrow else options.heads,
        "model.negatives": 1024 if many and is_narrow and softmax else options.negatives,
        "model.label_smoothing": 0.1 if is_narrow and softmax else 0.0,
        "model.dropout": 0.5 if is_narrow else 0.0,
        "model.shallow_width": shallow,
        "model.query_dropout": 0.2 if shallow else 0.0,
        "model.filter_negatives": not (shallow and softmax),
        "model.n3": 0.01 if shallow else 0.0,
        "model.exclude_self": excluded,
        "model.self_score": not excluded,
        "model.contrastive_weight": 0.0 if shallow and not similar else 0.5,
    }


#: what ``hasten tune`` searches
SEARCH: SearchSpace = {
    "training.lr": Range(5e-4, 1e-2, log=True),
    "model.hidden": Choice(8, 32, 64),
    "model.layers": Choice(1, 2, 3),
    "model.dropout": Range(0.0, 0.5),
    "model.negatives": Choice(64, 256, 1024),
    "model.contrastive_weight": Range(0.0, 1.0),
}

"""Random data for the checks on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.book_graph import BookGraph
from hasten.data.tables import Modality


def facts(entities: int = 3000, relations: int = 20, count: int = 40_000) -> dict[str, Any]:
    """Random triples."""
    generator = np.random.default_rng(0)
    ends = generator.integers(0, entities, (2, count))
    return {"head": ends[0], "relation": generator.integers(0, relations, count), "tail": ends[1]}


def made_book(scale: float) -> BookGraph:
    """Pairs and facts at random; at scale 1 a quarter of Amazon-book."""
    generator = np.random.default_rng(0)
    users, items, entities = (int(scale * size) for size in (18_000, 6_000, 28_000))
    pairs = np.unique(generator.integers(0, users, int(scale * 160_000)) * items
                      + generator.integers(0, items, int(scale * 160_000)))  # fmt: skip
    count, relations = int(scale * 640_000), 39
    ends = generator.integers(0, entities, (2, count))
    return BookGraph(
        pairs // items, pairs % items,
        ends[0], generator.integers(0, relations, count), ends[1],
        users, items, entities, relations,
    )  # fmt: skip


def made_features(items: int) -> tuple[Modality, ...]:
    """Random features of two modalities."""
    generator = np.random.default_rng(1)
    widths = {"image": 1024, "text": 384}
    return tuple(
        Modality.of(name, generator.standard_normal((items, width), np.float32))
        for name, width in widths.items()
    )

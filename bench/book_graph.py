"""A graph of the size of KGAT's Amazon-book: its real pairs, and made facts of the published size.

The published facts (2,557,746 triples, 39 relations, 113,487 entities) are not at hand; these have
their number, skewed tails and skewed relations. 6.4 million edges with those of the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.data import Int64, data_folder

ENTITIES, RELATIONS, TRIPLES = 113_487, 39, 2_557_746


@dataclass(frozen=True)
class BookGraph:
    """Pairs of users and items (those of train.txt), and distinct triples; items come first."""

    user: Int64
    item: Int64
    head: Int64
    relation: Int64
    tail: Int64
    users: int
    items: int
    entities: int
    relations: int


def book_graph(scale: float = 1.0) -> BookGraph:
    """The graph; scale: the share of users and of triples that is kept, for tests."""
    users: list[int] = []
    items: list[int] = []
    with (data_folder() / "cf_amazon-book_noKG" / "train.txt").open() as lines:
        for line in lines:
            first, *rest = line.split()
            users += [int(first)] * len(rest)
            items += map(int, rest)
    user, item = np.array(users), np.array(items)
    catalog = int(item.max()) + 1
    kept = user < scale * (user.max() + 1)
    user, item = user[kept], item[kept]
    generator = np.random.Generator(np.random.Philox(key=7))
    count = int(TRIPLES * scale)
    of_item = generator.random(count) < 0.6
    head = np.where(
        of_item,
        generator.integers(0, catalog, count),
        generator.integers(catalog, ENTITIES, count),
    )
    spread = (generator.pareto(1.0, count) * 2000).astype(np.int64)
    tail = catalog + np.minimum(spread, ENTITIES - catalog - 1)
    relation = np.minimum(generator.geometric(0.12, count) - 1, RELATIONS - 1)
    found = np.unique((head * RELATIONS + relation) * ENTITIES + tail)
    head, rest_of = np.divmod(found, RELATIONS * ENTITIES)
    relation, tail = np.divmod(rest_of, ENTITIES)
    return BookGraph(
        user, item, head, relation, tail, int(user.max()) + 1, catalog, ENTITIES, RELATIONS
    )

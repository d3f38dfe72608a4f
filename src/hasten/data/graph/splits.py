"""Splits of triples into train, valid and test."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hasten.data.columns import counter_random as counter
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, Triples
from hasten.errors import DataError

Parts = NDArray[np.int8]


def random_parts(
    triples: Triples, shares: tuple[float, float, float], seed: int
) -> tuple[Parts, str]:
    """A random split by shares, from the seed. Every entity and relation keeps a training triple.

    In a random order of the triples, the first one of each entity and of each relation stays in
    train; of the others, the last ones become test, those before them valid.

    Raises:
        DataError: too few triples for a part that should not be empty.
    """
    count = len(triples)
    order = np.argsort(counter.bits(counter.key(seed, counter.Stream.SPLIT, 1), count))
    first = np.zeros(count, bool)
    entities = np.stack([triples.head[order], triples.tail[order]], axis=1).reshape(-1)
    first[np.unique(entities, return_index=True)[1] // 2] = True
    first[np.unique(triples.relation[order], return_index=True)[1]] = True
    free = order[~first]
    sizes = {part: round(count * shares[part]) for part in (TEST, VALID)}
    part = np.full(count, TRAIN, np.int8)
    end = len(free)
    for number, size in sizes.items():
        taken = free[max(0, end - size) : end]
        part[taken] = number
        end -= len(taken)
        if shares[number] and not len(taken):
            raise DataError(
                f"data.ratios: of {count:,} triples none is left for {PART_NAMES[number]}, because "
                "every entity and relation keeps a training triple: name the parts, or lower the "
                "shares"
            )
    words = "/".join(f"{share:g}" for share in shares)
    return part, f"ratio {words} of the triples, at random (seed {seed}), none unseen in train"

"""Splits of triples into train, valid and test."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import counter_random as counter
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, Triples
from hasten.errors import DataError

Parts = NDArray[np.int8]
Shares = tuple[float, float, float]


def random_parts(triples: Triples, shares: Shares, seed: int) -> tuple[Parts, str]:
    """A random split by shares, from the seed. Every entity and relation keeps a training triple.

    Raises:
        DataError: too few triples for a part that should not be empty.
    """
    random = counter.bits(counter.key(seed, counter.Stream.SPLIT, 1), len(triples))
    group = np.zeros(len(triples), np.int64)
    part = held_out(triples, group, shares, random, "every entity and relation keeps a triple")
    words = "/".join(f"{share:g}" for share in shares)
    return part, f"ratio {words} of the triples, at random (seed {seed}), none unseen in train"


def held_out(
    triples: Triples, group: Int64, shares: Shares, random: NDArray[np.uint64], because: str
) -> Parts:
    """The part of each triple: shares of every group, in the order of random numbers.

    The first triple of each entity and of each relation stays in train; of the others in a group,
    the last ones become test, those before them valid. because: why a part may stay empty.

    Raises:
        DataError: nothing is left for a part that should not be empty.
    """
    order = np.argsort(random)
    ends = np.stack([triples.head, triples.tail], axis=1)[order]
    first = np.zeros(len(triples), bool)
    first[np.unique(ends.reshape(-1), return_index=True)[1] // 2] = True
    first[np.unique(triples.relation[order], return_index=True)[1]] = True
    part = np.full(len(triples), TRAIN, np.int8)
    for number, size in enumerate(np.bincount(group).tolist()):
        free = order[~first & (group[order] == number)]
        end = len(free)
        for which in (TEST, VALID):
            taken = free[max(0, end - round(size * shares[which])) : end]
            part[taken] = which
            end -= len(taken)
    for which in (TEST, VALID):
        if shares[which] and not (part == which).any():
            raise DataError(
                f"data.ratios: of {len(triples):,} triples none is left for {PART_NAMES[which]}, "
                f"because {because} in train: name the parts, or lower the shares"
            )
    return part

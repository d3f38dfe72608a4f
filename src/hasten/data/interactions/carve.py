"""Carve a validation part out of the training part of a given split."""

from __future__ import annotations

import numpy as np

from hasten.arrays import Int64
from hasten.data.columns import counter_random as counter
from hasten.data.splits import Parts
from hasten.data.tables import TRAIN, VALID
from hasten.errors import DataError

#: a user with fewer train items has none in the validation part
MIN_CARVED = 5


def carve_valid(
    part: Parts, user: Int64, item: Int64, share: float, seed: int
) -> tuple[Parts, str]:
    """Move a share of each user's train items to the empty validation part of a given split.

    Users with at least five distinct train items give round(n * share) of them, at least one,
    sampled with the seed. All interactions with a sampled item move.

    Raises:
        DataError: no user has five train items.
    """
    train = np.flatnonzero(part == TRAIN)
    width = int(item.max(initial=0)) + 1
    pairs, inverse = np.unique(user[train] * width + item[train], return_inverse=True)
    owner = pairs // width
    counts = np.bincount(owner)
    eligible = counts >= MIN_CARVED
    if not eligible.any():
        raise DataError(
            f"no user has {MIN_CARVED} train items, so none can be taken out for validation: give "
            "a validation file, or --set data.valid_share=0"
        )
    taken = np.where(eligible, np.maximum(np.floor(counts * share + 0.5), 1), 0).astype(np.int64)
    random = counter.bits(counter.key(seed, counter.Stream.SPLIT, 1), len(pairs))
    order = np.lexsort((random, owner))
    starts = np.cumsum(counts) - counts
    chosen = np.zeros(len(pairs), bool)
    chosen[order] = np.arange(len(pairs)) - starts[owner[order]] < taken[owner[order]]
    carved = part.copy()
    carved[train[chosen[inverse]]] = VALID
    words = f"validation {share:g} of the train items of users with {MIN_CARVED} (seed {seed})"
    return carved, words

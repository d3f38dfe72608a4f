"""Split interactions, sorted by user and time, into train, valid and test."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import counter_random as counter
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import DataError

Parts = NDArray[np.int8]
#: a user with fewer interactions is only trained on, never evaluated
MIN_EVENTS = 3
#: a user with fewer train items has none in the validation part
MIN_CARVED = 5


def leave_last_two_out(user: Int64, users: int, timed: bool) -> tuple[Parts, str]:
    """Each user's last interaction is the test, the one before the validation.

    timed: whether the interactions are in the order of their times, or only of the file.

    Raises:
        DataError: no user has three interactions.
    """
    counts, ends = _counts(user, users)
    if not np.any(counts >= MIN_EVENTS):
        raise DataError(
            f"no user has {MIN_EVENTS} events, so leave-last-two-out leaves nothing to test "
            f"({users} users, {len(user)} events)"
        )
    part = np.zeros(len(user), np.int8)
    eligible = ends[counts >= MIN_EVENTS]
    part[eligible - 1] = TEST
    part[eligible - 2] = VALID
    return part, f"leave-last-two-out, {_order(timed)}"


def ratio(
    user: Int64,
    users: int,
    shares: tuple[float, float, float],
    order: Literal["time", "random"],
    seed: int,
    timed: bool,
) -> tuple[Parts, str]:
    """Shares of each user's interactions: the last ones by time, or sampled with the seed.

    Of n interactions, round(n * share) go to test and to valid, but at least one stays in train.
    The random number of an interaction depends on the seed and its position in sorted order.

    Raises:
        DataError: no user has enough interactions for a part with a share above 0.
    """
    counts, ends = _counts(user, users)
    eligible = np.where(counts >= MIN_EVENTS, counts, 0)
    tests = np.floor(eligible * shares[2] + 0.5).astype(np.int64)
    valids = np.floor(eligible * shares[1] + 0.5).astype(np.int64)
    tests = np.minimum(tests, np.maximum(eligible - 1, 0))
    valids = np.minimum(valids, np.maximum(eligible - 1 - tests, 0))
    for share, sizes, name in ((shares[1], valids, "valid"), (shares[2], tests, "test")):
        if share > 0 and not sizes.any():
            raise DataError(
                f"data.ratios: no user has enough events for the {name} share of {share:g} "
                f"(the longest has {int(counts.max(initial=0))}); larger shares, or "
                "data.split=leave-last-two-out, need fewer"
            )
    if order == "random":
        random = counter.bits(counter.key(seed, counter.Stream.SPLIT), len(user))
        positions = np.lexsort((random, user))
    else:
        positions = np.arange(len(user))
    from_end = ends[user] - 1 - np.arange(len(user))
    sorted_part = np.full(len(user), TRAIN, np.int8)
    sorted_part[from_end < (tests + valids)[user]] = VALID
    sorted_part[from_end < tests[user]] = TEST
    part = np.empty(len(user), np.int8)
    part[positions] = sorted_part
    words = "/".join(f"{share:g}" for share in shares)
    how = _order(timed) if order == "time" else f"at random (seed {seed})"
    return part, f"ratio {words} of each user's events, {how}"


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


def _order(timed: bool) -> str:
    return "by time" if timed else "in file order"


def _counts(user: Int64, users: int) -> tuple[Int64, Int64]:
    """The number of interactions of each user [U], and where they end [U]."""
    counts = np.bincount(user, minlength=users)
    return counts, np.cumsum(counts)

"""Splits of interactions into train, valid and test; given splits; overlap checks; refit."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, distinct, matches
from hasten.data.columns import counter_random as counter
from hasten.data.columns.checks import counted
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, AnyDataset, KnowledgeGraph
from hasten.errors import DataError

Parts = NDArray[np.int8]
Shares = tuple[float, float, float]
#: a user with fewer interactions is only trained on, never evaluated
MIN_EVENTS = 3


def given_parts(part: Parts | None, noun: str, remedy: str) -> tuple[Parts, str]:
    """The split that the files or a column give. noun: "event" or "triple".

    Raises:
        DataError: there is none, or no training row.
    """
    if part is None:
        raise DataError(f"data.split=given, but the data name no parts: give {remedy}")
    if not np.any(part == TRAIN):
        raise DataError(f"the given split has no training {noun}")
    names = [name for number, name in enumerate(PART_NAMES) if np.any(part == number)]
    return part, f"given parts ({', '.join(names)})"


def overlaps(keys: Int64, part: Parts, noun: str, of: str, notes: list[str]) -> dict[str, int]:
    """How many keys are in two parts; notes are appended to ``notes``."""
    in_part = [distinct(keys[part == p]) for p in (TRAIN, VALID, TEST)]
    counts = {}
    for first, second, name in _pairs_of_parts(noun):
        counts[name] = len(matches(in_part[second], in_part[first])[0])
    notes += overlap_notes(counts, noun, of)
    return counts


def overlap_notes(counts: dict[str, int], noun: str, of: str) -> list[str]:
    """A note for each count of :func:`overlaps` that is not 0."""
    return [
        f"overlap: {counted(counts[name], noun)}{of} in both {PART_NAMES[first]} and "
        f"{PART_NAMES[second]}"
        for first, second, name in _pairs_of_parts(noun)
        if counts[name]
    ]


def _pairs_of_parts(noun: str) -> list[tuple[int, int, str]]:
    """Two parts, and the name of the count of what is in both."""
    pairs = ((TRAIN, VALID), (TRAIN, TEST), (VALID, TEST))
    return [(a, b, f"{noun}s_in_{PART_NAMES[a]}_and_{PART_NAMES[b]}") for a, b in pairs]


def leave_last_two_out(user: Int64, users: int, timed: bool) -> tuple[Parts, str]:
    """Each user's last interaction is the test, the one before the validation.

    timed: whether the interactions are in the order of their times, or only of the file.

    Raises:
        DataError: no user has three interactions.
    """
    counts, ends = _counts(user, users)
    require_length(counts, 2, "leave-last-two-out")
    part = np.zeros(len(user), np.int8)
    eligible = ends[counts >= MIN_EVENTS]
    part[eligible - 1] = TEST
    part[eligible - 2] = VALID
    return part, f"leave-last-two-out, {order_words(timed)}"


def require_length(counts: Int64, left_out: int, split: str) -> None:
    """Raise DataError if no user has more events than are left out. counts: of each user."""
    if not np.any(counts > left_out):
        raise DataError(
            f"no user has {left_out + 1} events, so {split} leaves nothing to test "
            f"({len(counts)} users, {int(counts.sum())} events)"
        )


def leave_last_one_out(user: Int64, users: int, timed: bool) -> tuple[Parts, str]:
    """Each user's last interaction is the test; there is no validation part.

    Raises:
        DataError: no user has two interactions.
    """
    counts, ends = _counts(user, users)
    require_length(counts, 1, "leave-last-one-out")
    part = np.zeros(len(user), np.int8)
    part[ends[counts > 1] - 1] = TEST
    return part, f"leave-last-one-out, {order_words(timed)}"


def leave_random_two_out(user: Int64, users: int, seed: int) -> tuple[Parts, str]:
    """A random interaction of each user is the test, another one the validation.

    Raises:
        DataError: no user has three interactions.
    """
    random = counter.bits(counter.key(seed, counter.Stream.SPLIT), len(user))
    part = np.empty(len(user), np.int8)
    part[np.lexsort((random, user))], _ = leave_last_two_out(user, users, timed=False)
    return part, f"leave-random-two-out (seed {seed})"


def ratio(
    user: Int64,
    users: int,
    shares: Shares,
    order: Literal["time", "random"],
    seed: int,
    timed: bool,
    rounding: Literal["nearest", "down"] = "nearest",
) -> tuple[Parts, str]:
    """Shares of each user's interactions: the last ones by time, or sampled with the seed.

    Of n interactions, round(n * share) go to test and to valid, but at least one stays in train.
    With ``rounding="down"`` these are floor(n * share), but one where that is 0 and train keeps
    another one; test goes first (as in RecBole). The random number of an interaction depends on the
    seed and its position in sorted order.

    Raises:
        DataError: no user has enough interactions for a part with a share above 0.
    """
    counts, ends = _counts(user, users)
    valids, tests = ratio_sizes(counts, shares, rounding)
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
    how = order_words(timed) if order == "time" else f"at random (seed {seed})"
    return part, ratio_words(shares, rounding, how)


def ratio_sizes(counts: Int64, shares: Shares, rounding: str) -> tuple[Int64, Int64]:
    """[U] sizes of valid and test of users with so many events. Raises as :func:`ratio` does."""
    valids, tests = (_rounded_down if rounding == "down" else _rounded)(counts, shares)
    for share, sizes, name in ((shares[1], valids, "valid"), (shares[2], tests, "test")):
        if share > 0 and not sizes.any():
            raise DataError(
                f"data.ratios: no user has enough events for the {name} share of {share:g} "
                f"(the longest has {int(counts.max(initial=0))}); larger shares, or "
                "data.split=leave-last-two-out, need fewer"
            )
    return valids, tests


def ratio_words(shares: Shares, rounding: str, how: str) -> str:
    """The description of a split by shares. how: the order."""
    words = "/".join(f"{share:g}" for share in shares)
    down = "rounded down, " if rounding == "down" else ""
    return f"ratio {words} of each user's events, {down}{how}"


def _rounded(counts: Int64, shares: Shares) -> tuple[Int64, Int64]:
    """[U] sizes of valid and test: the nearest numbers; none of a user with few interactions."""
    eligible = np.where(counts >= MIN_EVENTS, counts, 0)
    tests = np.floor(eligible * shares[2] + 0.5).astype(np.int64)
    valids = np.floor(eligible * shares[1] + 0.5).astype(np.int64)
    tests = np.minimum(tests, np.maximum(eligible - 1, 0))
    return np.minimum(valids, np.maximum(eligible - 1 - tests, 0)), tests


def _rounded_down(counts: Int64, shares: Shares) -> tuple[Int64, Int64]:
    """[U] sizes of valid and test, rounded down, but to one if train keeps one."""
    valids, tests = (np.floor(counts * share).astype(np.int64) for share in shares[1:])
    tests = tests + ((shares[2] > 0) & (tests == 0) & (counts - tests - valids > 1))
    valids = valids + ((shares[1] > 0) & (valids == 0) & (counts - tests - valids > 1))
    return valids, tests


def order_words(timed: bool) -> str:
    """The order of the events, in words."""
    return "by time" if timed else "in file order"


def _counts(user: Int64, users: int) -> tuple[Int64, Int64]:
    """The number of interactions of each user [U], and where they end [U]."""
    counts = np.bincount(user, minlength=users)
    return counts, np.cumsum(counts)


def require_validation(dataset: AnyDataset) -> None:
    """Raise DataError if there is no validation part."""
    if not dataset.holds(VALID):
        raise DataError(f"{dataset.name}: data.refit=true, but there is no validation part")


def refitted(dataset: AnyDataset) -> AnyDataset:
    """The dataset with its validation part moved into the training part; test stays as it is.

    Raises:
        DataError: there is no validation part.
    """
    require_validation(dataset)
    moved = dataset.part == VALID
    part = np.where(moved, TRAIN, dataset.part).astype(np.int8)
    note = f"{int(moved.sum()):,} of validation are trained on (data.refit)"
    source = dataset.source.plus([note], train=int(np.sum(part == TRAIN)), valid=0)
    split = f"{dataset.split}, refitted on train and validation"
    if isinstance(dataset, KnowledgeGraph):
        dataset = replace(dataset, rank_last=dataset.rank_last & ~moved)
    return replace(dataset, part=part, split=split, source=source)

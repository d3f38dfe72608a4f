"""Splits of interactions, triples and links into train, valid and test; overlap checks; refit."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, distinct, first_places, matches
from hasten.data.columns import counter_random as counter
from hasten.data.columns.checks import counted
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, AnyDataset, KnowledgeGraph, Triples
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
    for first, second in ((TRAIN, VALID), (TRAIN, TEST), (VALID, TEST)):
        count = len(matches(in_part[second], in_part[first])[0])
        part_names = f"{PART_NAMES[first]} and {PART_NAMES[second]}"
        counts[f"{noun}s_in_{part_names.replace(' ', '_')}"] = count
        if count:
            notes.append(f"overlap: {counted(count, noun)}{of} in both {part_names}")
    return counts


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


def random_parts(triples: Triples, shares: Shares, seed: int) -> tuple[Parts, str]:
    """A random split by shares, from the seed. Every entity and relation keeps a training triple.

    Raises:
        DataError: too few triples for a part that should not be empty.
    """
    random = counter.bits(counter.key(seed, counter.Stream.SPLIT, 1), len(triples))
    group = np.zeros(len(triples), np.int64)
    part = _held_out(triples, group, shares, random, "every entity and relation keeps a triple")
    words = "/".join(f"{share:g}" for share in shares)
    return part, f"ratio {words} of the triples, at random (seed {seed}), none unseen in train"


def _held_out(
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
    first = np.zeros(len(triples) + 1, bool)  # one more, for ids that do not occur
    for values, per_triple in ((ends.reshape(-1), 2), (triples.relation[order], 1)):
        first[first_places(values, int(values.max(initial=-1)) + 1) // per_triple] = True
    part = np.full(len(triples), TRAIN, np.int8)
    order = order[~first[:-1]]
    sizes = np.bincount(group)
    # the triples of each group, in their random order
    of_group = np.argsort(group[order].astype(np.min_scalar_type(len(sizes))), kind="stable")
    ends_at = np.cumsum(np.bincount(group[order], minlength=len(sizes)))
    for size, free in zip(sizes.tolist(), np.split(order[of_group], ends_at)[:-1], strict=True):
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


def link_parts(triples: Triples, shares: Shares, seed: int) -> tuple[Parts, str]:
    """A random split of every relation's links by shares. Every node keeps a training edge.

    A link is an unordered pair of nodes under a relation, so an edge and its reverse are always in
    the same part. In a random order, the first link of each node and of each relation stays in
    train.

    Raises:
        DataError: nothing is left for a part that should not be empty.
    """
    count = int(max(triples.head.max(), triples.tail.max())) + 1 if len(triples) else 0
    low, high = np.minimum(triples.head, triples.tail), np.maximum(triples.head, triples.tail)
    _, first, link = np.unique(
        (triples.relation * count + low) * count + high, return_index=True, return_inverse=True
    )
    links = Triples(low[first], triples.relation[first], high[first])
    random = counter.bits(counter.key(seed, counter.Stream.SPLIT, 2), len(links))
    part = _held_out(links, links.relation, shares, random, "every node and relation keeps an edge")
    words = "/".join(f"{share:g}" for share in shares)
    return part[link.reshape(-1)], (
        f"ratio {words} of every relation's edges with their reverses, at random (seed {seed}), "
        "no node unseen in train"
    )


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

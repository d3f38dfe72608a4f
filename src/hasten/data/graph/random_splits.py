"""Random splits of triples, and of the links of typed graphs, into train, valid and test."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, first_places
from hasten.data.columns import counter_random as counter
from hasten.data.splits import Parts, Shares
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, Triples
from hasten.errors import DataError


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
    sizes_of_parts = np.bincount(part, minlength=len(PART_NAMES))
    require_parts(len(triples), sizes_of_parts, shares, because)
    return part


def require_parts(triples: int, sizes: Int64, shares: Shares, because: str) -> None:
    """Raise DataError if a part with a share is empty. sizes: of the parts."""
    for which in (TEST, VALID):
        if shares[which] and not sizes[which]:
            raise DataError(
                f"data.ratios: of {triples:,} triples none is left for {PART_NAMES[which]}, "
                f"because {because} in train: name the parts, or lower the shares"
            )


#: why a part of links may stay empty
KEEPS_AN_EDGE = "every node and relation keeps an edge"


def link_key(seed: int) -> int:
    """The key of the random numbers of links, which are numbered by relation, low and high end."""
    return counter.key(seed, counter.Stream.SPLIT, 2)


def link_words(shares: Shares, seed: int) -> str:
    """The description of :func:`link_parts`."""
    words = "/".join(f"{share:g}" for share in shares)
    return (
        f"ratio {words} of every relation's edges with their reverses, at random (seed {seed}), "
        "no node unseen in train"
    )


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
    random = counter.bits(link_key(seed), len(links))
    part = _held_out(links, links.relation, shares, random, KEEPS_AN_EDGE)
    return part[link.reshape(-1)], link_words(shares, seed)

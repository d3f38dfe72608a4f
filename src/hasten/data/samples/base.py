"""Shared by the built-in samples: their type, seeded random numbers, and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import counter_random as counter
from hasten.errors import DataError


@dataclass(frozen=True, eq=False)
class SampleSet:
    """A generated data set. table: user_id, item_id, timestamp; names: id text -> name.

    facts: triples (head, relation, tail) about the items, or None. features: modality -> float32
    [N, d], row i for the item with the id i.
    """

    table: pa.Table
    names: dict[str, str]
    facts: pa.Table | None = None
    features: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def uniform(count: int, part: int, seed: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) of the given stream."""
    return counter.uniform(counter.key(seed, counter.Stream.SAMPLE, part), count)


def integers(high: int, count: int, part: int, seed: int) -> Int64:
    """Uniform integers in [0, high) of the given stream."""
    return counter.integers(high, counter.key(seed, counter.Stream.SAMPLE, part), count)


def permutation(count: int, part: int, seed: int) -> Int64:
    """A random order of 0..count-1 of the given stream."""
    return np.argsort(counter.bits(counter.key(seed, counter.Stream.SAMPLE, part), count))


def triple_table(rows: Sequence[tuple[str, str, str]]) -> pa.Table:
    """A table of head, relation and tail."""
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(("head", "relation", "tail"), map(list, columns), strict=True)))


def first_pairs(user: Int64, item: Int64, events: int) -> tuple[Int64, Int64]:
    """The first distinct pairs of each user, as many as make ``events`` together.

    user: ascending, from 0 without gaps.
    """
    users, items = int(user[-1]) + 1, int(item.max()) + 1
    pair, first_index = np.unique(user * items + item, return_index=True)
    order = np.argsort(first_index)
    user, item = pair[order] // items, pair[order] % items
    events_per_user = np.full(users, events // users)
    events_per_user[: events - int(events_per_user.sum())] += 1
    begin = np.searchsorted(user, np.arange(users))
    is_first = np.arange(len(user)) - begin[user] < events_per_user[user]
    return user[is_first], item[is_first]


def catalog_sizes(
    users: int | None,
    items: int | None,
    events: int | None,
    usual: tuple[int, int, int],
    least_items: int,
    most: tuple[int, str],
) -> tuple[int, int, int]:
    """Users, items and events; sizes left out are the usual ones, events in proportion to users.

    most: how many-th part of the items a user has at most, and the word for it.

    Raises:
        DataError: sizes that do not go together.
    """
    users = usual[0] if users is None else users
    items = usual[1] if items is None else items
    events = users * (usual[2] // usual[0]) if events is None else events
    enough = users >= 1 and items >= least_items
    if not (enough and 5 * users <= events <= users * items // most[0]):
        raise DataError(
            f"{users} users, {items} items, {events} events: at least {least_items} items, and "
            f"between 5 and {most[1]} of the items for each user"
        )
    return users, items, events

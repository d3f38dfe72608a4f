"""Typed tables: what readers produce and what everything after them consumes.

Shapes: ``n`` interactions, ``U`` users, ``N`` items, ``Q`` queries. Indices are int64 and
contiguous from 0; a ``Vocabulary`` carries the labels (and names) that they stand for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hasten.data.graph import Facts
    from hasten.data.modalities import Modality

TRAIN, VALID, TEST = 0, 1, 2
PART_NAMES = ("train", "valid", "test")

Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The labels behind indices 0..len-1, in index order, with names where known.

    labels: int64 or string Arrow array without duplicates or nulls.
    names: string Arrow array of the same length (nulls where unknown), or None.
    """

    labels: pa.Array
    names: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def numeric(self) -> bool:
        return bool(pa.types.is_integer(self.labels.type))

    def index(self, labels: pa.Array) -> Int64:
        """Indices of the given labels, -1 where a label is unknown."""
        found = pc.index_in(labels, value_set=self.labels)
        return np.asarray(pc.fill_null(found, -1), dtype=np.int64)

    def take(self, indices: Int64) -> pa.Array:
        """Labels of the given indices."""
        return self.labels.take(pa.array(indices))


@dataclass(frozen=True, eq=False)
class Interactions:
    """Events of users with items, sorted by user, then time, then file order.

    user, item: int64 [n]; rating: float32 [n] or None; time: int64 [n] unix seconds or None.
    """

    user: Int64
    item: Int64
    rating: NDArray[np.float32] | None = None
    time: Int64 | None = None

    def __len__(self) -> int:
        return len(self.user)


@dataclass(frozen=True, eq=False)
class Histories:
    """Ragged lists of items, one a row, oldest first (compressed sparse rows).

    offsets: int64 [Q+1]; items: int64 [n]; times: int64 [n] unix seconds or None.
    """

    offsets: Int64
    items: Int64
    times: Int64 | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        return np.diff(self.offsets)

    def take(self, rows: Int64) -> Histories:
        """The given rows, in the given order (with repetition)."""
        positions, offsets = ragged_positions(self.offsets, rows)
        times = None if self.times is None else self.times[positions]
        return Histories(offsets, self.items[positions], times)


def ragged_offsets(rows: NDArray[np.integer[Any]], count: int) -> Int64:
    """[count + 1] where each row begins in a CSR array of elements of these rows."""
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return offsets


def ragged_positions(offsets: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """Flat positions of the elements of ``rows`` in a CSR array, and the new offsets."""
    lengths = offsets[rows + 1] - offsets[rows]
    new = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=new[1:])
    positions = np.arange(new[-1], dtype=np.int64) + np.repeat(offsets[rows] - new[:-1], lengths)
    return positions, new


@dataclass(frozen=True)
class Source:
    """Where a dataset came from: what goes into the run's ``data.json``.

    files: one dict a file: name, sha256, bytes. counts: users, items, interactions, ...
    notes: what the checks counted and did (duplicates dropped, milliseconds suspected, ...).
    """

    format: str
    path: str | None = None
    files: tuple[dict[str, Any], ...] = ()
    counts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Interactions with their vocabularies and their split into train, valid and test.

    part: int8 [n], TRAIN, VALID or TEST for each interaction.
    split: how the parts were made, in words that travel with the numbers.
    facts: what is known of the items, for models that read it; modalities: their features.
    """

    name: str
    users: Vocabulary
    items: Vocabulary
    interactions: Interactions
    part: NDArray[np.int8]
    split: str
    source: Source
    facts: Facts | None = None
    modalities: tuple[Modality, ...] = ()

    def histories(self, *parts: int) -> Histories:
        """Each user's items of the given parts, oldest first; one row a user [U]."""
        keep = np.isin(self.part, parts)
        user = self.interactions.user[keep]
        offsets = ragged_offsets(user, len(self.users))
        time = self.interactions.time
        return Histories(
            offsets, self.interactions.item[keep], None if time is None else time[keep]
        )

"""Shared by the built-in samples: their type, seeded random numbers, and writing to files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import counter_random as counter
from hasten.errors import UsageError


@dataclass(frozen=True, eq=False)
class SampleSet:
    """A generated data set. table: user_id, item_id, timestamp; names: item_id text -> name.

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


def first_pairs(user: Int64, item: Int64, events: int) -> tuple[Int64, Int64]:
    """The first distinct pairs of each user, as many as make ``events`` together.

    user: ascending, from 0 without gaps.
    """
    users, items = int(user[-1]) + 1, int(item.max()) + 1
    pair, at = np.unique(user * items + item, return_index=True)
    order = np.argsort(at)
    user, item = pair[order] // items, pair[order] % items
    wanted = np.full(users, events // users)
    wanted[: events - int(wanted.sum())] += 1
    begin = np.searchsorted(user, np.arange(users))
    kept = np.arange(len(user)) - begin[user] < wanted[user]
    return user[kept], item[kept]


def new_files(out: Path, kind: str, *endings: str) -> tuple[Path, ...]:
    """``X.csv`` and the files ``X`` + ending beside it, none of which exists; makes the folder.

    out: a .csv file, or a folder for ``KIND.csv``. UsageError if one of the files exists.
    """
    data = out if out.suffix == ".csv" else out / f"{kind}.csv"
    stem = data.name.removesuffix(".csv")
    files = (data, *(data.with_name(stem + ending) for ending in endings))
    for path in files:
        if path.exists():
            raise UsageError(f"{path} exists already")
    data.parent.mkdir(parents=True, exist_ok=True)
    return files


def write_csv(table: pa.Table, path: Path) -> None:
    """Write a table whose cells need no quotes, with a header, atomically."""
    aside = path.with_name(f".{path.name}.new")
    try:
        with aside.open("wb") as file:
            file.write((",".join(table.column_names) + "\n").encode())
            options = arrow_csv.WriteOptions(include_header=False, quoting_style="none")
            arrow_csv.write_csv(table, file, options)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)

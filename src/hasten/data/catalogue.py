"""Data sets by name: built-in samples, and sets that ``hasten data fetch`` brings.

Remote sets are registered only where the address and the sha256 are known for sure; anything else
can be fetched by its address with ``--sha256``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.config import DataOptions
from hasten.errors import DataError

if TYPE_CHECKING:
    from hasten.data.samples import SampleSet


def _sequences() -> SampleSet:
    from hasten.data.samples import make_sequences  # noqa: PLC0415

    return make_sequences()


@dataclass(frozen=True)
class Sample:
    """A built-in sample."""

    name: str
    summary: str
    make: Callable[[], SampleSet]


@dataclass(frozen=True)
class Remote:
    """A set that can be fetched. file, names: paths inside the archive."""

    name: str
    summary: str
    url: str
    sha256: str
    bytes: int
    licence: str
    file: str
    format: str
    names: str | None = None
    names_encoding: str = "utf-8"


_GROUPLENS = (
    "GroupLens terms: research only, no commercial use or redistribution without permission, "
    "cite Harper & Konstan 2015 (doi:10.1145/2827872)"
)

CATALOGUE: dict[str, Sample | Remote] = {
    entry.name: entry
    for entry in (
        Sample(
            "sequences",
            "1,200 made listeners, 400 records, 24,000 events; the next record can be predicted",
            _sequences,
        ),
        Remote(
            name="ml-100k",
            summary="MovieLens 100K: 943 users, 1,682 movies, 100,000 ratings with times",
            url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
            sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            bytes=4_924_029,
            licence=_GROUPLENS,
            file="ml-100k/u.data",
            format="lines",
            names="ml-100k/u.item",
            names_encoding="latin-1",
        ),
        Remote(
            name="ml-1m",
            summary="MovieLens 1M: 6,040 users, 3,706 movies, 1,000,209 ratings with times",
            url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
            sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
            bytes=5_917_549,
            licence=_GROUPLENS,
            file="ml-1m/ratings.dat",
            format="lines",
            names="ml-1m/movies.dat",
            names_encoding="latin-1",
        ),
    )
}


def find(name: str) -> Sample | Remote:
    """The entry of that name.

    Raises:
        DataError: there is none; with the nearest name.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name, CATALOGUE, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DataError(
        f"{name}: no such file or folder, and no registered data set{hint} "
        f"(registered: {', '.join(CATALOGUE)})"
    )


def resolve(entry: Remote, options: DataOptions) -> DataOptions:
    """The options that read the fetched set; what the user chose stays.

    Raises:
        DataError: the set was not fetched yet.
    """
    from hasten.data.fetch import cached  # noqa: PLC0415

    folder = cached(entry.name, entry.sha256)
    if folder is None:
        raise DataError(
            f"{entry.name} is registered but not in the cache: hasten data fetch {entry.name}"
        )
    names = options.names or _inside(folder, entry.names)
    update = {"path": str(folder / entry.file), "names": names}
    if options.format is None:
        update["format"] = entry.format
    return options.model_copy(update=update)


def _inside(folder: Path, name: str | None) -> str | None:
    return None if name is None else str(folder / name)

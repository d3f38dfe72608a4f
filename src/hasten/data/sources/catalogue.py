"""Data sets by name: built-in samples, and sets that ``hasten data fetch`` downloads.

Remote sets are registered only where the address and the sha256 are known for sure; anything else
can be fetched by its address with ``--sha256``.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hasten.data.samples.base import SampleSet
from hasten.data.samples.files import SAMPLES
from hasten.data.sources.published import PUBLISHED, RemoteFolder
from hasten.errors import DataError


@dataclass(frozen=True)
class Sample:
    """A built-in sample."""

    name: str
    summary: str
    kind: Literal["interactions", "triples", "typed", "facts", "features"] = "interactions"

    def make(self) -> SampleSet:
        """The sample at its usual size."""
        return SAMPLES[self.name]()


@dataclass(frozen=True)
class Remote:
    """A set that can be fetched. file, names: paths inside the archive, or file: an archive."""

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
    kind: Literal["interactions", "triples"] = "interactions"


_GROUPLENS = (
    "GroupLens terms: research only, no commercial use or redistribution without permission, "
    "cite Harper & Konstan 2015 (doi:10.1145/2827872)"
)

_CONVE = (
    "https://raw.githubusercontent.com/TimDettmers/ConvE/f3c0eb286025410fa5b4c04696c918264163d0ca"
)
_MIT = "MIT (of the repository it is fetched from); the terms of the data's owners apply"


def _triples(name: str, file: str, summary: str, sha256: str, size: int) -> Remote:
    """A set of triples in its given parts, as published with the ConvE paper."""
    return Remote(
        name, summary, f"{_CONVE}/{file}", sha256, size, _MIT, "", "triples", kind="triples"
    )


def _movielens(name: str, summary: str, sha256: str, size: int, files: tuple[str, str]) -> Remote:
    """A set of GroupLens. files: the ratings and the names of the movies."""
    url = f"https://files.grouplens.org/datasets/movielens/{name}.zip"
    ratings, movies = (f"{name}/{file}" for file in files)
    return Remote(name, summary, url, sha256, size, _GROUPLENS, ratings, "lines", movies, "latin-1")


#: the sets that ``hasten data fetch`` downloads
Fetched = Remote | RemoteFolder

Entry = Sample | Remote | RemoteFolder

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Sample(
            "sequences",
            "1,200 made listeners, 400 records, 24,000 events; the next record can be predicted",
        ),
        Sample(
            "sittings",
            "as sequences, but the pauses between records tell which one is next",
        ),
        Sample(
            "families",
            "a made knowledge graph: 360 entities, 10 relations that follow from each other",
            kind="triples",
        ),
        Sample(
            "library",
            "600 made readers, 3,200 books, 6,000 events, and facts that tell what they read next",
            kind="facts",
        ),
        Sample(
            "gallery",
            "600 made visitors, 2,400 pictures, 6,000 events, and features of image and text",
            kind="features",
        ),
        Sample(
            "medicine",
            "a made typed graph: 1,180 genes, pathways, diseases and drugs around mechanisms",
            kind="typed",
        ),
        _movielens(
            "ml-100k",
            "MovieLens 100K: 943 users, 1,682 movies, 100,000 ratings with times",
            "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            4_924_029,
            ("u.data", "u.item"),
        ),
        _movielens(
            "ml-1m",
            "MovieLens 1M: 6,040 users, 3,706 movies, 1,000,209 ratings with times",
            "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
            5_917_549,
            ("ratings.dat", "movies.dat"),
        ),
        _triples(
            "fb15k-237",
            "FB15k-237.tar.gz",
            "Freebase: 14,541 entities, 237 relations, 310,116 triples in given parts",
            "311df7930f842a02979eaa7a802484a6afe62303c07f915f1e6edbc30cbe05e8",
            3_678_603,
        ),
        _triples(
            "umls",
            "umls.tar.gz",
            "medical concepts: 135 entities, 46 relations, 6,529 triples in given parts",
            "26223aa91f0ec8db2324e0f489b9a4425e04d1d0df72ce5cfd62af4b91aee6fd",
            35_648,
        ),
        _triples(
            "kinship",
            "kinship.tar.gz",
            "kinship terms: 104 people, 25 relations, 10,686 triples in given parts",
            "a3cb9ca67213eb38133aebc12901195e283d844ebd59f1a6cbf2d4fa12ced4e6",
            42_703,
        ),
        _triples(
            "nations",
            "nations.tar.gz",
            "relations of states: 14 states, 55 relations, 1,992 triples in given parts",
            "feb3e3e027103089934ea7dfb67d2048d8a43e65d6757a86f2e037acb66f640b",
            8_077,
        ),
        *PUBLISHED,
    )
}


def find(name: str) -> Entry:
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


def registered(path: str | None) -> Entry | None:
    """The entry that a path names; None where there is a file or folder of that name, or no path.

    Raises:
        DataError: there is neither; with the nearest name.
    """
    return None if path is None or Path(path).exists() else find(path)

"""Data sets by name: built-in samples, and sets that ``hasten data fetch`` downloads.

``datasets.toml`` lists them. Other files can be fetched by URL with ``--sha256``.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from hasten.data.readers.partitions import is_pattern
from hasten.data.samples.base import SampleSet
from hasten.data.samples.files import SAMPLES
from hasten.errors import DataError, did_you_mean

#: prefix of a Git blob hash in place of a SHA-256
GIT = "git:"


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


@dataclass(frozen=True)
class RemoteFolder:
    """A folder whose files are fetched one by one. url: its address; files: name -> digest.

    bytes: no file is larger.
    """

    name: str
    summary: str
    url: str
    files: dict[str, str]
    bytes: int
    licence: str
    kind: Literal["facts"] = "facts"
    names_encoding: str = "utf-8"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the list of files and digests: the key in the cache."""
        listed = "\n".join(f"{name} {digest}" for name, digest in sorted(self.files.items()))
        return hashlib.sha256(listed.encode()).hexdigest()


def git_name(path: Path) -> str:
    """``git:`` and the Git blob hash of a file."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        return GIT + hashlib.file_digest(file, lambda: digest).hexdigest()


#: the sets that ``hasten data fetch`` downloads
Fetched = Remote | RemoteFolder
Entry = Sample | Fetched
_KINDS: dict[str, type[Entry]] = {"samples": Sample, "archives": Remote, "folders": RemoteFolder}
_LISTED = tomllib.loads(files(__package__).joinpath("datasets.toml").read_text("utf-8"))
CATALOG: dict[str, Entry] = {
    name: kind(name=name, **entry)
    for group, kind in _KINDS.items()
    for name, entry in _LISTED[group].items()
}


def find(name: str) -> Entry:
    """The entry of that name.

    Raises:
        DataError: there is none; with the nearest name.
    """
    if name in CATALOG:
        return CATALOG[name]
    raise DataError(
        f"{name}: no such file or folder, and no registered data set"
        f"{did_you_mean(name, CATALOG)} (registered: {', '.join(CATALOG)})"
    )


def registered(path: str | None) -> Entry | None:
    """The entry that a path names; None for a file, a folder, a pattern, or no path.

    Raises:
        DataError: there is neither; with the nearest name.
    """
    if path is None or Path(path).exists() or is_pattern(Path(path)):
        return None
    return find(path)

"""Names of data files: extensions, words."""

from __future__ import annotations

import re
from pathlib import Path

ENDINGS = (".csv", ".tsv", ".txt", ".dat", ".data", ".tab", ".inter", ".parquet", ".pq")


def ending(path: Path) -> str:
    """The file extension, without that of the compression."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def stem(path: Path) -> str:
    """The name of a file without its extension and that of the compression."""
    return Path(path.name.removesuffix(".gz")).stem


def plain_name(name: str) -> str:
    """The name of a data file without the extensions of data files."""
    name = name.removesuffix(".gz")
    for known in ENDINGS:
        name = name.removesuffix(known)
    return name


def words(path: Path) -> list[str]:
    """The words of the name of a data file, in lower case."""
    return re.split(r"[^a-z0-9]+", plain_name(path.name.lower()))

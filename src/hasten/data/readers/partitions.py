"""Partition keys: the columns that the names of folders give, as in ``day=2026-01-01``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

_PARTITION = re.compile(r"[^=]+=.*")
_PATTERN = re.compile(r"[*?\[]")
#: the folder of rows without a value
_NULL = "__HIVE_DEFAULT_PARTITION__"


def is_partition(name: str) -> bool:
    """Whether a folder has the name of a partition: ``key=value``."""
    return _PARTITION.fullmatch(name) is not None


def is_pattern(path: Path) -> bool:
    """Whether a path that does not exist is a pattern: ``events/*.parquet``."""
    return _PATTERN.search(str(path)) is not None and not path.exists()


def base_of(path: Path) -> Path:
    """The folder below which a pattern matches; any other path itself."""
    if not is_pattern(path):
        return path
    return next(parent for parent in path.parents if not _PATTERN.search(str(parent)))


def partition_keys(file: Path, named: str | None) -> dict[str, str | None]:
    """The keys of the folders between what ``data.path`` names and a file."""
    if named is None or not file.is_relative_to(base_of(Path(named))):
        return {}
    folders = file.relative_to(base_of(Path(named))).parent.parts
    pairs = (name.partition("=") for name in folders if is_partition(name))
    return {unquote(key): None if value == _NULL else unquote(value) for key, _, value in pairs}

"""Several files of one table: a pattern, a partitioned folder, or numbered files."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hasten.data.columns.text import check_name
from hasten.data.readers.partitions import is_partition, is_pattern
from hasten.errors import DataError

PARQUET_ENDINGS = (".parquet", ".pq")
#: what the writers of one table vary in the names of its files: numbers, hexadecimal digits
_NUMBERING = re.compile(r"^part-.*|[0-9a-f]*[0-9][0-9a-f]*")


def matching_files(pattern: Path) -> list[Path]:
    """The files that match a pattern such as ``events/*.parquet`` or ``events/**/*.parquet``.

    Raises:
        DataError: no file matches.
    """
    check_name(pattern)
    assert is_pattern(pattern)
    paths = [Path(name) for name in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207 - "**"
    files = [p for p in paths if p.is_file() and not p.name.startswith("_")]
    if not files:
        raise DataError(f"{pattern}: no file matches this pattern")
    return _with_rows(files)


def partitioned_files(folder: Path) -> list[Path]:
    """The Parquet files of a folder partitioned as by Hive: ``day=2026-01-01/part-0.parquet``."""
    inside = [p for p in sorted(folder.iterdir()) if p.is_dir() and is_partition(p.name)]
    paths = [p for sub in inside for p in sorted(sub.rglob("*"))]
    hidden = (".", "_")
    files = [p for p in paths if p.suffix in PARQUET_ENDINGS and p.is_file()]
    return _with_rows([p for p in files if not p.name.startswith(hidden)])


def are_numbered(files: Sequence[Path]) -> bool:
    """Whether files are the Parquet files of one table: their names differ only in numbers."""
    if len(files) < 2 or any(p.suffix not in PARQUET_ENDINGS for p in files):
        return False
    return len({_NUMBERING.sub("#", p.stem) for p in files}) == 1


def numbered_with_rows(files: Sequence[Path]) -> list[Path]:
    """The files of one table without those that hold no rows; [] unless they are numbered."""
    return _with_rows(files) if are_numbered(files) else []


def joined_note(files: Sequence[Path]) -> str:
    """The note about files that are read as one table."""
    return f"{len(files):,} files read as one table: {files[0].name} ... {files[-1].name}"


def _with_rows(files: Sequence[Path]) -> list[Path]:
    """The files without the empty Parquet files that writers leave; all if none holds rows."""
    return [path for path in files if not _is_empty(path)] or list(files)


def _is_empty(path: Path) -> bool:
    if path.suffix not in PARQUET_ENDINGS:
        return False
    try:
        return bool(pq.read_metadata(path).num_rows == 0)
    except (pa.ArrowException, OSError, ValueError):
        return False  # the reader reports what is wrong

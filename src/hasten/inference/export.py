"""Tables to Parquet, CSV or JSON files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from hasten.errors import HastenError, UsageError
from hasten.runs.atomic_write import sync, sync_path

# A spreadsheet takes a text cell that begins with one of these for a formula.
_FORMULA = r"^[=+\-@\t\r]"


def write_table(table: pa.Table, path: Path, format: str | None = None) -> None:
    """Write a table; the format is named, or follows from the ending of the path.

    Raises UsageError for an unknown format, HastenError where the file cannot be written.
    """
    write = _writer(path, format)
    try:
        with _appearing(path) as file:
            write(table, file)
    except OSError as error:
        raise HastenError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_target(path: Path, format: str | None) -> None:
    """Refuse a target that cannot work before any work is done. Raises UsageError."""
    _writer(path, format)
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file such as {path / 'items.parquet'}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder {path.parent} cannot be written to")


def neutralised(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text cells that a spreadsheet would run as a formula, made plain by a leading ``'``.

    Numbers stay as they are.
    """
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return pc.replace_substring_regex(column, pattern=_FORMULA, replacement=r"'\0")


def _writer(path: Path, format: str | None) -> Callable[[pa.Table, IO[bytes]], None]:
    name = format or path.suffix.lower().removeprefix(".")
    if name not in _WRITERS:
        how = f"format {format!r}" if format else f"{path}: the ending"
        raise UsageError(f"{how} is not known; there are: {', '.join(_WRITERS)}")
    return _WRITERS[name]


def _write_parquet(table: pa.Table, file: IO[bytes]) -> None:
    pq.write_table(table, file, compression="zstd")


def _write_csv(table: pa.Table, file: IO[bytes]) -> None:
    safe = pa.table({name: neutralised(table[name]) for name in table.column_names})
    pa_csv.write_csv(safe, file, pa_csv.WriteOptions(quoting_style="needed"))


def _write_json(table: pa.Table, file: IO[bytes]) -> None:
    """An array of objects, one a row, a line each."""
    file.write(b"[")
    for batch in table.to_batches(max_chunksize=10_000):
        for number, row in enumerate(batch.to_pylist()):
            file.write(b"\n" if number == 0 and file.tell() == 1 else b",\n")
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode())
    file.write(b"\n]\n")


_WRITERS: dict[str, Callable[[pa.Table, IO[bytes]], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "json": _write_json,
}


@contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file beside the path that takes its place, flushed to the disk, once it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            sync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)

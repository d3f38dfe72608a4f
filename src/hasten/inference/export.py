"""Write tables to Parquet, CSV or JSON files, atomically."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from hasten.atomic_write import atomic_path, require_regular
from hasten.errors import HastenError, UsageError, os_errors_as

# Spreadsheets run text cells that start with one of these as formulas.
_FORMULA = r"^[=+\-@\t\r]"
# Columns of ids are written exactly, so that they can be joined with the data.
_IDS = re.compile(r"(test_)?(user_id|item_id|head|relation|tail)")


def write_table(table: pa.Table, path: Path, format: str | None = None) -> None:
    """Write a table (:func:`write_tables`)."""
    write_tables([table], path, format)


def write_tables(tables: Iterable[pa.Table], path: Path, format: str | None = None) -> None:
    """Write the rows of tables with the same columns; the file appears when all are written.

    format: None: from the file extension. Raises UsageError for an unknown format, HastenError if
    the file cannot be written.
    """
    write = _writer(path, format)
    with (
        os_errors_as(HastenError, "cannot be written", path),
        atomic_path(path) as temporary,
        temporary.open("wb") as file,
    ):
        write(tables, file)


def check_target(path: Path, format: str | None) -> None:
    """Raise UsageError if the table cannot be written there. Call this before any other work."""
    _writer(path, format)
    check_file(path)


def check_file(path: Path) -> None:
    """Raise UsageError unless a file of this name can be written, or replaced if there is one."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file such as {path / 'items.parquet'}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder {path.parent} cannot be written to")
    with os_errors_as(UsageError, "cannot be replaced", path):
        require_regular(path)


def escape_formulas(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Escape text that a spreadsheet would run as a formula by a leading ``'``."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    return pc.replace_substring_regex(column, pattern=_FORMULA, replacement=r"'\0")


def _writer(path: Path, format: str | None) -> Callable[[Iterable[pa.Table], IO[bytes]], None]:
    name = format or path.suffix.lower().removeprefix(".")
    if name not in _WRITERS:
        how = f"format {format!r}" if format else f"{path}: the ending"
        raise UsageError(f"{how} is not known; there are: {', '.join(_WRITERS)}")
    return _WRITERS[name]


def _write_parquet(tables: Iterable[pa.Table], file: IO[bytes]) -> None:
    left = iter(tables)
    first = next(left)
    with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        for table in chain([first], left):
            writer.write_table(table)


def _write_csv(tables: Iterable[pa.Table], file: IO[bytes]) -> None:
    for number, table in enumerate(tables):
        safe = pa.table(
            {
                name: column if _IDS.fullmatch(name) else escape_formulas(column)
                for name, column in zip(table.column_names, table.columns, strict=True)
            }
        )
        options = pa_csv.WriteOptions(quoting_style="needed", include_header=not number)
        pa_csv.write_csv(safe, file, options)


def _write_json(tables: Iterable[pa.Table], file: IO[bytes]) -> None:
    """An array with one object per row and line."""
    file.write(b"[")
    for batch in chain.from_iterable(table.to_batches(max_chunksize=10_000) for table in tables):
        for number, row in enumerate(batch.to_pylist()):
            file.write(b"\n" if number == 0 and file.tell() == 1 else b",\n")
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode())
    file.write(b"\n]\n")


_WRITERS: dict[str, Callable[[Iterable[pa.Table], IO[bytes]], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "json": _write_json,
}

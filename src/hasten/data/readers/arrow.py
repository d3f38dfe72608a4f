"""Parquet files, and tables in memory: Arrow, pandas, polars, DuckDB, datasets, arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from hasten.config import DataOptions, InteractionOptions
from hasten.data.columns.checks import FEATURE, ID_ROLES, Row, Rows, Rules, first_rule, part_of
from hasten.data.columns.text import Sample, file_digest
from hasten.data.readers import in_blocks
from hasten.data.readers.columns import ROLES, SYNONYMS, event_features, find_roles, plain
from hasten.data.readers.interface import Claim, Reader, header_claim, unused_note
from hasten.data.readers.partitions import partition_keys
from hasten.data.readers.table import Blocks, Table, feature_texts, is_date
from hasten.errors import DataError, HastenError, OutOfMemoryError, is_out_of_memory

MAGIC = b"PAR1"
_BLOCK = 1 << 16
#: rows of a block of a file
_BATCH = 1 << 19
_SAMPLE = 1000


def _rows_of(source: str, columns: Mapping[str, pa.ChunkedArray]) -> Rows:
    """An Arrow table row by row. columns: role -> column."""
    forms = dict.fromkeys(ID_ROLES, "ids")
    forms |= {"rating": "numbers", "time": "unix times or dates"}
    expected = ", ".join(f"{role}: {forms.get(role, role)}" for role in columns)
    time, rules = columns.get("time"), Rules()
    if time is not None and types.is_string(time.type):
        rules = Rules(time=first_rule(time[:_SAMPLE].to_pylist()))
    return Rows(source, expected, rules, partial(_rows, columns))


def _rows(columns: Mapping[str, pa.ChunkedArray], before: int = 0) -> Iterator[Row]:
    """Every row, numbered after ``before`` others; dates by type need no check."""
    roles = list(columns)
    dated = "time" in roles and is_date(columns["time"].type)
    for start in range(0, len(columns[roles[0]]), _BLOCK):
        slices = [columns[role].slice(start, _BLOCK).to_pylist() for role in roles]
        for number, values in enumerate(zip(*slices, strict=True), before + start + 1):
            cells = ["" if value is None else str(value) for value in values]
            row = dict(zip(roles, cells, strict=True))
            absent = dated and not row.pop("time")
            problem = "the time is missing" if absent else list(row.items())
            yield f"row {number}", ", ".join(cells), problem


def open_arrow(
    source: str, table: pa.Table, roles: Mapping[str, int], notes: tuple[str, ...] = ()
) -> Table:
    """The columns of a table in memory. roles: role -> position.

    Raises:
        DataError: no rows, or a column of a type that its role cannot have.
    """
    columns = {
        role: (feature_texts if role.startswith(FEATURE) else _plain)(source, role, table.column(i))
        for role, i in roles.items()
    }
    if not table.num_rows:
        raise DataError(f"{source}: 0 rows")
    return Table(_rows_of(source, columns), columns, notes=notes)


def as_arrow(table: Any, name: str) -> pa.Table:
    """The table as Arrow; a polars LazyFrame is collected.

    Raises:
        DataError: not a table, or columns of Python objects.
    """
    package = type(table).__module__.partition(".")[0]
    try:
        if isinstance(table, pa.Table):
            return table
        if isinstance(table, Mapping):
            return pa.table({str(k): _column(name, str(k), v) for k, v in table.items()})
        if package == "polars" and hasattr(table, "collect"):
            table = table.collect()
        if hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
            return pa.table(table)
        if package == "pandas":
            return pa.Table.from_pandas(table, preserve_index=False)
        if package == "datasets" and hasattr(table, "with_format") and hasattr(table, "__len__"):
            return table.with_format("arrow")[:]  # heeds select, filter and shuffle
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{name}: cannot be read as a table ({error})") from error
    raise DataError(
        f"{name}: a {type(table).__name__} is no table; give a pandas, polars, Arrow or DuckDB "
        "table, a datasets.Dataset that is not streamed, a dict of arrays or a dict of the tables "
        "train, valid and test; for files, a path or a pattern such as 'events/*.parquet'"
    )


def tables_by_part(data: Any) -> list[tuple[str, Any, int | None]]:
    """(name, table, part) of data in memory: one table, or a dict from part to table.

    Such a dict is a ``datasets.DatasetDict``. A training table alone has no given split.

    Raises:
        DataError: a table whose name is no part, no training table, or two for one part.
    """
    if not isinstance(data, Mapping):
        return [("table", data, None)]
    parts = {str(key): None if str(key).isdecimal() else part_of(str(key)) for key in data}
    present = sorted(part for part in parts.values() if part is not None)
    if 0 not in present and not any(map(_is_table, data.values())):
        return [("table", data, None)]
    if len(present) < len(data) or len(set(present)) < len(present) or 0 not in present:
        raise DataError(
            f"the tables are named {', '.join(parts)}; the names train, valid and test (or "
            "validation) give a split, with valid or test left out. Or give one table, such as "
            f"data[{next(iter(parts))!r}]"
        )
    if len(present) == 1:
        return [("table", next(iter(data.values())), None)]
    parts_with_tables = zip(parts.items(), data.values(), strict=True)
    tables = [(f"table {key}", table, part) for (key, part), table in parts_with_tables]
    return sorted(tables, key=lambda each: each[2] or 0)


def _is_table(value: Any) -> bool:
    """Whether a value has columns, as no column has."""
    attributes = ("columns", "column_names", "schema")
    return isinstance(value, Mapping) or any(hasattr(type(value), a) for a in attributes)


def _column(name: str, key: str, values: Any) -> pa.Array:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{name}: column {key!r} has {array.ndim} dimensions instead of 1")
    # numpy turns large integers of a list into floating-point numbers
    return pa.array(values if isinstance(values, (list, tuple)) else array)


def open_memory(
    table: Any, options: DataOptions, name: str, among: tuple[str, ...] = ROLES
) -> Table:
    """The columns of a table in memory by role. among: ROLES or TRIPLE_ROLES."""
    arrow = as_arrow(table, name)
    roles = find_roles(name, arrow.column_names, options.columns, among, event_features(options))
    if isinstance(roles, str):
        raise DataError(f"{name}: {roles}")
    return open_arrow(name, arrow, roles, unused_note(arrow.column_names, roles))


def claim_parquet(path: Path, options: DataOptions, among: tuple[str, ...] = ROLES) -> Claim | str:
    """How a Parquet file is read, by the names of its columns and of the partitions it lies in.

    A partition key is a column if the file has none for its role.
    """
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    filled = {r for r in among if r in options.columns or _fitting(r, names)}
    keys = {
        key: value
        for key, value in partition_keys(path, options.path).items()
        if key not in names
        and (key in options.columns.values() or not any(_fitting(r, [key]) for r in filled))
    }
    names += keys
    roles = find_roles(str(path), names, options.columns, among, event_features(options))
    if isinstance(roles, str):
        return roles
    return replace(header_claim("Parquet", names, roles), layout=keys)


def _fitting(role: str, names: Iterable[str]) -> bool:
    return any(plain(name) in SYNONYMS[role] for name in names)


def open_parquet(path: Path, claim: Claim) -> Table:
    """The claimed columns of a Parquet file.

    Raises:
        DataError: a damaged file, no rows, or a column of a type that its role cannot have.
        OutOfMemoryError: the columns do not fit into memory.
    """
    try:
        table = pq.read_table(path, columns=_own(claim), partitioning=None)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    opened = _claimed(path, table, claim)
    return Table(opened.rows, opened.columns, (file_digest(path),), claim.notes)


def blocks(sample: Sample, claim: Claim) -> Blocks:
    """A Parquet file in blocks. Raises as :func:`open_parquet` does."""
    path = sample.path
    tables = _tables(path, claim)
    first = next(tables, None)
    if first is None:
        raise DataError(f"{path}: 0 rows")
    rows = replace(first.rows, read=partial(_rows_of_file, path, claim))
    whole = (Table(rows, table.columns) for table in chain([first], tables))
    roles, total = frozenset(claim.details["columns"]), pq.read_metadata(path).num_rows
    return Blocks(rows, total, roles, whole, (file_digest(path),), claim.notes)


def _tables(path: Path, claim: Claim) -> Iterator[Table]:
    """The claimed columns in blocks, whose rows are those of the block only."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH, columns=_own(claim)):
                if batch.num_rows:
                    yield _claimed(path, pa.Table.from_batches([batch]), claim)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _rows_of_file(path: Path, claim: Claim) -> Iterator[Row]:
    """Every row of a Parquet file."""
    start = 0
    for table in _tables(path, claim):
        yield from _rows(table.columns, start)
        start += len(next(iter(table.columns.values())))


def _own(claim: Claim) -> list[str]:
    """The claimed columns that the file itself holds."""
    return [n for n in dict.fromkeys(claim.details["columns"].values()) if n not in claim.layout]


def _claimed(path: Path, table: pa.Table, claim: Claim) -> Table:
    """The claimed columns of rows of a file, with those of its partition."""
    columns: dict[str, str] = claim.details["columns"]
    keys: dict[str, str | None] = claim.layout
    for role, name in columns.items():
        if name in keys and name not in table.column_names:
            table = table.append_column(name, _constant(role, keys[name], table.num_rows))
    roles = {role: table.column_names.index(name) for role, name in columns.items()}
    return open_arrow(str(path), table, roles)


def _constant(role: str, text: str | None, rows: int) -> pa.Array:
    """A column of one value: text, but unix times as numbers."""
    number = role == "time" and text is not None and text.isdecimal()
    return pa.repeat(pa.scalar(int(text or 0)) if number else pa.scalar(text, pa.string()), rows)


def _claim(sample: Sample, options: InteractionOptions, _: bool) -> Claim | str:
    if not sample.magic.startswith(MAGIC):
        return "it does not start as Parquet does"
    claim = claim_parquet(sample.path, options)
    if isinstance(claim, Claim) and options.separator is not None:
        return "data.separator is given, but Parquet has none"
    return claim


def _damaged(path: Path, error: Exception) -> HastenError:
    if is_out_of_memory(error):  # an Arrow error too
        return OutOfMemoryError(
            f"{path}: out of memory while it was read ({error}); hasten data prepare reads events "
            "in blocks"
        )
    return DataError(f"{path}: damaged Parquet file ({error})")


def _plain(source: str, role: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without dictionaries; all kinds of text, and UUIDs, as plain strings."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if isinstance(column.type, pa.UuidType):
        chunks = [chunk.storage.dictionary_encode() for chunk in column.chunks]
        texts = [[str(UUID(bytes=b)) for b in c.dictionary.to_pylist()] for c in chunks]
        column = pa.chunked_array(
            [pa.array(t, pa.string()).take(c.indices) for t, c in zip(texts, chunks, strict=True)],
            pa.string(),
        )
    if str(column.type) in ("large_string", "string_view"):
        column = column.cast(pa.string())
    if types.is_boolean(column.type) or types.is_nested(column.type):
        raise DataError(f"{source}: the {role} column is of type {column.type}, which is no {role}")
    return column


PARQUET = Reader(
    "parquet",
    "Parquet with the columns user_id, item_id[, rating][, timestamp]",
    _claim,
    lambda file, c: in_blocks.read(
        c.details["columns"], partial(open_parquet, file.path, c), partial(blocks, file, c)
    ),
)

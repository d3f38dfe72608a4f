"""Parquet files, and tables in memory: pandas, polars, pyarrow (any Arrow C stream), arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from hasten.config import DataOptions, InteractionOptions
from hasten.data.columns.checks import ID_ROLES, Row, Rows, Rules, first_rule
from hasten.data.columns.text import Sample, file_digest
from hasten.data.readers.columns import ROLES, find_roles
from hasten.data.readers.interface import Claim, Reader, header_claim, unused_note
from hasten.data.readers.table import Table, is_date
from hasten.errors import DataError

MAGIC = b"PAR1"
_BLOCK = 1 << 16
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


def _rows(columns: Mapping[str, pa.ChunkedArray]) -> Iterator[Row]:
    """Every row; dates by type need no check."""
    roles = list(columns)
    dated = "time" in roles and is_date(columns["time"].type)
    for start in range(0, len(columns[roles[0]]), _BLOCK):
        slices = [columns[role].slice(start, _BLOCK).to_pylist() for role in roles]
        for number, values in enumerate(zip(*slices, strict=True), start + 1):
            cells = ["" if value is None else str(value) for value in values]
            row = dict(zip(roles, cells, strict=True))
            absent = dated and not row.pop("time")
            found = "the time is missing" if absent else list(row.items())
            yield f"row {number}", ", ".join(cells), found


def open_arrow(
    source: str, table: pa.Table, roles: Mapping[str, int], notes: tuple[str, ...] = ()
) -> Table:
    """The columns of a table in memory. roles: role -> position.

    Raises:
        DataError: no rows, or a column of a type that its role cannot have.
    """
    columns = {role: _plain(source, role, table.column(i)) for role, i in roles.items()}
    if not table.num_rows:
        raise DataError(f"{source}: 0 rows")
    return Table(_rows_of(source, columns), columns, notes=notes)


def as_arrow(table: Any, name: str) -> pa.Table:
    """The table as Arrow.

    Raises:
        DataError: not a table, or columns of Python objects.
    """
    try:
        if isinstance(table, pa.Table):
            return table
        if isinstance(table, Mapping):
            return pa.table({str(k): _column(name, str(k), v) for k, v in table.items()})
        if hasattr(table, "__arrow_c_stream__"):
            return pa.table(table)
        if type(table).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(table, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{name}: cannot be read as a table ({error})") from error
    raise DataError(
        f"{name}: a {type(table).__name__} is no table; give a pandas, polars or pyarrow table "
        "or a dict of arrays"
    )


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
    roles = find_roles(name, arrow.column_names, options.columns, among)
    if isinstance(roles, str):
        raise DataError(f"{name}: {roles}")
    return open_arrow(name, arrow, roles, unused_note(arrow.column_names, roles))


def claim_parquet(
    path: Path, overrides: Mapping[str, str], among: tuple[str, ...] = ROLES
) -> Claim | str:
    """How a Parquet file is read, by the names of its columns."""
    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    roles = find_roles(str(path), names, overrides, among)
    return roles if isinstance(roles, str) else header_claim("Parquet", names, roles)


def open_parquet(path: Path, claim: Claim) -> Table:
    """The claimed columns of a Parquet file.

    Raises:
        DataError: a damaged file, no rows, or a column of a type that its role cannot have.
    """
    columns: dict[str, str] = claim.details["columns"]
    try:
        table = pq.read_table(path, columns=list(columns.values()), partitioning=None)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    roles = {role: table.column_names.index(name) for role, name in columns.items()}
    opened = open_arrow(str(path), table, roles)
    return Table(opened.rows, opened.columns, (file_digest(path),), claim.notes)


def _claim(sample: Sample, options: InteractionOptions, _: bool) -> Claim | str:
    if not sample.magic.startswith(MAGIC):
        return "it does not start as Parquet does"
    claim = claim_parquet(sample.path, options.columns)
    if isinstance(claim, Claim) and options.separator is not None:
        return "data.separator is given, but Parquet has none"
    return claim


def _damaged(path: Path, error: Exception) -> DataError:
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
    lambda sample, claim: open_parquet(sample.path, claim).parsed(),
)

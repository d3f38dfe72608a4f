"""Tables in memory: pandas, polars, pyarrow (any Arrow C stream) or a dict of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hasten.config import DataOptions
from hasten.data.readers.claims import unused_note
from hasten.data.readers.columnar import open_arrow
from hasten.data.readers.columns import ROLES, find_roles
from hasten.data.readers.table import Table
from hasten.errors import DataError


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

"""Parse a file block after block, so that only the final columns are in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.data.columns.checks import FEATURE, ID_ROLES, first_rule
from hasten.data.columns.labels import Labels
from hasten.data.columns.times import TimeColumn
from hasten.data.readers.ahead import read_ahead
from hasten.data.readers.interface import Columns
from hasten.data.readers.table import Blocks, Table

#: rows whose labels are numbered together
GROUP = 3 << 20
#: whole numbers below this, or below an eighth of the rows, are not hashed
FEW = 1 << 20


def label_limit(rows: int) -> int:
    """Whole numbers below it are not hashed: 13 bytes a number, so at most 2 bytes a row."""
    return max(FEW, rows >> 3)


def read(roles: Iterable[str], whole: Callable[[], Table], blocks: Callable[[], Blocks]) -> Columns:
    """The interactions of a file in blocks; of one with columns of event features, as a whole."""
    if any(role.startswith(FEATURE) for role in roles):
        return whole().parsed()
    return parsed(blocks())


def parsed(blocks: Blocks) -> Columns:
    """What ``Table.parsed`` gives of the whole file, apart from event features.

    Raises:
        DataError: what is wrong with the data, with file, line and text.
    """
    roles = [role for role in ID_ROLES if role in blocks.roles]
    limit = label_limit(blocks.total)
    labels = {role: Labels(limit) for role in roles}
    parts: dict[str, list[NDArray[Any]]] = {}
    unit = None
    for group in groups(read_ahead(blocks.tables), GROUP):
        for role in roles:
            cells = [table.plain_ids(role) for table in group]
            parts.setdefault(role, []).append(labels[role].codes(cells))
        for table in group:
            time = times_of(table)
            unit = unit if time is None else time.unit
            values = {
                "rating": table.ratings(),
                "time": None if time is None else time.values,
                "part": table.parts(),
            }
            for name, column in values.items():
                if column is not None:
                    parts.setdefault(name, []).append(column)
        del group, table, cells
        pa.default_memory_pool().release_unused()
    columns = {role: labels[role].column(_joined(parts.pop(role))) for role in roles}
    joined = {name: _joined(parts.pop(name)) for name in [*parts]}
    return Columns(
        rows=blocks.rows,
        ids=columns,
        rating=joined.get("rating"),
        time=TimeColumn(joined["time"], unit) if "time" in joined else None,
        part=joined.get("part"),
        files=blocks.files,
        notes=blocks.notes,
    )


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The parts one after the other; each is freed once it is copied."""
    if len(parts) == 1:
        return parts.pop()
    column = np.empty(sum(map(len, parts)), np.result_type(*{part.dtype for part in parts}))
    end = len(column)
    while parts:
        part = parts.pop()
        column[end - len(part) : end] = part
        end -= len(part)
    return column


def size(table: Table) -> int:
    """The rows of a block."""
    return len(next(iter(table.columns.values())))


def groups(tables: Iterable[Table], rows: int) -> Iterator[list[Table]]:
    """Blocks of together about so many rows, with times of one unit."""
    group: list[Table] = []
    for table in tables:
        if group and (sum(map(size, group)) >= rows or _kind(table) != _kind(group[0])):
            yield group
            group = []
        group.append(table)
    if group:
        yield group


def _kind(table: Table) -> pa.DataType | None:
    column = table.columns.get("time")
    return None if column is None else column.type


def times_of(table: Table) -> TimeColumn | None:
    """The times of a block, by the rule of the whole file."""
    column, rule = table.columns.get("time"), table.rows.rules.time
    if column is None:
        return None
    dated = len(column) and pa.types.is_string(column.type)
    if dated and first_rule([column[0].as_py()]) != rule:  # a whole file is read by one rule
        table.refuse("dates with and without a zone")
    return table.times()

"""Arrow tables -> events; shared by Parquet files and tables in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from hasten.data.columns.checks import (
    ID_ROLES,
    MAX_ID,
    MAX_RATING,
    MAX_TIME,
    Problem,
    Rules,
    part_of,
    refusal,
    time_rule,
)
from hasten.data.columns.raw import IdColumn, TimeColumn
from hasten.data.readers.interface import Events
from hasten.errors import DataError


def read_arrow(
    source: str,
    table: pa.Table,
    roles: Mapping[str, int],
    files: tuple[dict[str, Any], ...] = (),
    notes: tuple[str, ...] = (),
) -> Events:
    """The events of a table whose columns are known.

    Raises:
        DataError: with the rows (from 1) and what they hold.
    """
    columns = Columns(source, {role: table.column(i) for role, i in roles.items()})
    if not table.num_rows:
        raise DataError(f"{source}: 0 rows")
    return Events(
        source=source,
        user=columns.ids("user"),
        item=columns.ids("item"),
        rating=columns.ratings(),
        time=columns.times(),
        part=columns.parts(),
        problems=columns.problems,
        expected=columns.expected,
        files=files,
        notes=notes,
    )


class Columns:
    """The used columns of a table by role."""

    def __init__(self, source: str, columns: Mapping[str, pa.ChunkedArray]) -> None:
        self.source = source
        self.columns = {role: _flat(source, role, column) for role, column in columns.items()}
        time = self.columns.get("time")
        self.dates = time is not None and types.is_string(time.type)

    @property
    def expected(self) -> str:
        forms = dict.fromkeys(ID_ROLES, "ids")
        forms |= {"rating": "numbers", "time": "unix times or dates"}
        return ", ".join(f"{role}: {forms.get(role, role)}" for role in self.columns)

    def problems(self, rules: Rules) -> Iterator[Problem]:
        """Every row that breaks the rules."""
        roles = list(self.columns)
        count = len(self.columns[roles[0]])
        for start in range(0, count, 1 << 16):
            slices = [self.columns[r].slice(start, 1 << 16).to_pylist() for r in roles]
            for i, values in enumerate(zip(*slices, strict=True)):
                row = {r: "" if v is None else str(v) for r, v in zip(roles, values, strict=True)}
                checked = {r: v for r, v in row.items() if not (r == "time" and self._typed())}
                reason = rules.problem(checked)
                if reason is None and row.get("time") == "":
                    reason = "the time is missing"
                if reason is not None:
                    yield Problem(f"row {start + i + 1}", ", ".join(row.values()), reason)

    def _typed(self) -> bool:
        """Whether the times are dates by their type, so that no text needs to be judged."""
        time = self.columns["time"].type
        return bool(types.is_timestamp(time) or types.is_date(time))

    def refuse(self, cause: str, rules: Rules | None = None) -> NoReturn:
        raise refusal(self.source, self.problems(rules or Rules()), self.expected, "", cause)

    def ids(self, role: str) -> IdColumn:
        column = self.columns[role]
        if column.null_count:
            self.refuse(f"a {role} id is missing")
        if types.is_floating(column.type):  # pandas makes floats of whole numbers
            values = column.to_numpy()
            whole = np.abs(values) <= MAX_ID
            whole &= values == np.floor(values)
            column = column.cast(pa.int64() if whole.all() else pa.string())
        elif types.is_integer(column.type):
            large = types.is_uint64(column.type)  # may not fit; the text is judged like any other
            column = column.cast(pa.string() if large else pa.int64())
        elif not types.is_string(column.type):
            raise DataError(
                f"{self.source}: the {role} column is of type {column.type}; "
                "whole numbers or text are expected"
            )
        encoded = column.dictionary_encode().combine_chunks()
        encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
        return IdColumn(np.asarray(encoded.indices, np.int32), encoded.dictionary)

    def ratings(self) -> NDArray[np.float32] | None:
        column = self.columns.get("rating")
        if column is None:
            return None
        try:
            values = column.cast(pa.float64()).to_numpy()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            self.refuse(str(error))
        if column.null_count or not np.all(np.abs(values) <= MAX_RATING):
            self.refuse("a rating that is not finite")
        return np.asarray(values, np.float32)

    def times(self) -> TimeColumn | None:
        column = self.columns.get("time")
        if column is None:
            return None
        if column.null_count:
            self.refuse("a time is missing")
        if types.is_string(column.type):
            for zone in (None, "UTC"):
                try:
                    column = column.cast(pa.timestamp("us", zone))
                    break
                except pa.ArrowInvalid:
                    continue
            else:
                self._refuse_dates()
        if self._is_date(column.type):
            micros = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
            return TimeColumn(np.asarray(micros.to_numpy()), "us")
        if not (types.is_integer(column.type) or types.is_floating(column.type)):
            raise DataError(
                f"{self.source}: the time column is of type {column.type}; "
                "numbers, dates or timestamps are expected"
            )
        kind = pa.float64() if types.is_floating(column.type) else pa.int64()
        try:
            values = column.cast(kind).to_numpy()
        except pa.ArrowInvalid:
            self.refuse("a time out of range")
        if not np.all(np.abs(values) <= MAX_TIME):
            self.refuse("a time out of range")
        return TimeColumn(values)

    def _refuse_dates(self) -> NoReturn:
        self.refuse(
            "a date that cannot be read", Rules(time=time_rule(self.columns["time"][0].as_py()))
        )

    @staticmethod
    def _is_date(kind: pa.DataType) -> bool:
        return bool(types.is_timestamp(kind) or types.is_date(kind))

    def parts(self) -> NDArray[np.int8] | None:
        column = self.columns.get("part")
        if column is None:
            return None
        encoded = column.cast(pa.string()).dictionary_encode().combine_chunks()
        encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
        known = [part_of(text) for text in encoded.dictionary.to_pylist()]
        if encoded.null_count or None in known:
            self.refuse("a part that is neither train nor valid nor test")
        parts: NDArray[np.int8] = np.array(known, np.int8)[np.asarray(encoded.indices)]
        return parts


def _flat(source: str, role: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without dictionaries; all kinds of text as plain strings."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = str(column.type)
    if kind in ("large_string", "string_view"):
        column = column.cast(pa.string())
    if types.is_boolean(column.type) or types.is_nested(column.type):
        raise DataError(f"{source}: the {role} column is of type {column.type}, which is no {role}")
    return column

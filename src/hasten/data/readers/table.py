"""Check the columns of a table by role; shared by all tabular formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from hasten.data.columns.checks import FEATURE, ID_ROLES, MAX_RATING, MAX_TIME, Rows, part_of
from hasten.data.columns.ids import IdColumn
from hasten.data.columns.times import TimeColumn
from hasten.data.readers.interface import Columns
from hasten.errors import DataError


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a file or of a table in memory. Methods raise DataError with the bad rows.

    columns: role -> Arrow column; rows: the same row by row, for messages; files: what was read;
    notes: what was assumed or left out.
    """

    rows: Rows
    columns: Mapping[str, pa.ChunkedArray]
    files: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def parsed(self) -> Columns:
        """The ids, and the ratings, times and parts where there are any."""
        return Columns(
            rows=self.rows,
            ids={role: self.ids(role) for role in ID_ROLES if role in self.columns},
            rating=self.ratings(),
            time=self.times(),
            part=self.parts(),
            features={
                role.removeprefix(FEATURE): IdColumn.of(column)
                for role, column in self.columns.items()
                if role.startswith(FEATURE)
            },
            files=self.files,
            notes=self.notes,
        )

    def refuse(self, cause: str) -> NoReturn:
        """Raise the error that names the bad rows."""
        raise self.rows.refused(cause)

    def ids(self, role: str) -> IdColumn:
        """A column of ids, dictionary-encoded: text or whole numbers."""
        return IdColumn.of(self.plain_ids(role))

    def plain_ids(self, role: str) -> pa.ChunkedArray:
        """A column of ids: text, or whole numbers of 64 bits."""
        column = self.columns[role]
        if column.null_count:
            self.refuse(f"a {role} id is missing")
        if types.is_floating(column.type):  # pandas makes floats of whole numbers
            values = column.to_numpy()
            bits = np.finfo(values.dtype).nmant + 1
            if np.any(np.abs(values) > 2.0**bits):
                self.refuse(
                    f"{role} ids that are floating-point numbers above 2^{bits} may have lost "
                    "digits: give them as integers or as text"
                )
            whole = np.all(values == np.floor(values))
            column = column.cast(pa.int64() if whole else pa.string())
        elif types.is_uint64(column.type) or types.is_decimal(column.type):
            column = column.cast(pa.string())  # may not fit; checked like any other text
        elif types.is_integer(column.type):
            column = column.cast(pa.int64())
        elif not (types.is_string(column.type) or types.is_dictionary(column.type)):
            self._wrong_type(role, "whole numbers or text")
        return column

    def ratings(self) -> NDArray[np.float32] | None:
        """Finite ratings, float32 [n]."""
        column = self.columns.get("rating")
        if column is None:
            return None
        try:
            column = column if types.is_float32(column.type) else column.cast(pa.float64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            self.refuse(str(error))
        values = column.to_numpy()
        if column.null_count or not np.all(np.abs(values) <= MAX_RATING):
            self.refuse("a rating that is not finite")
        return np.asarray(values, np.float32)

    def times(self) -> TimeColumn | None:
        """Times: numbers, dates as text (all with a time zone, or none), or timestamps."""
        column = self.columns.get("time")
        if column is None:
            return None
        if column.null_count:
            self.refuse("a time is missing")
        if types.is_string(column.type):
            column = self._dates(column)
        if is_date(column.type):
            micros = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
            return TimeColumn(np.asarray(micros.to_numpy()), "us")
        if not (types.is_integer(column.type) or types.is_floating(column.type)):
            self._wrong_type("time", "numbers, dates or timestamps")
        try:
            kind = pa.float64() if types.is_floating(column.type) else pa.int64()
            values = column.cast(kind).to_numpy()
        except pa.ArrowInvalid:
            self.refuse("a time out of range")
        if not np.all(np.abs(values) <= MAX_TIME):
            self.refuse("a time out of range")
        return TimeColumn(values)

    def _dates(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            return column.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            pass
        try:
            return column.cast(pa.timestamp("us", "UTC"))
        except pa.ArrowInvalid as error:
            self.refuse(str(error))

    def parts(self) -> NDArray[np.int8] | None:
        """TRAIN, VALID or TEST, int8 [n]."""
        column = self.columns.get("part")
        if column is None:
            return None
        if not types.is_dictionary(column.type):
            column = column.cast(pa.string())
        cause = "a part that is neither train nor valid nor test"
        if column.null_count:
            self.refuse(cause)
        encoded = IdColumn.of(column)
        known = [part_of(text) for text in encoded.texts()]
        if None in known:
            self.refuse(cause)
        parts: NDArray[np.int8] = np.array(known, np.int8)[encoded.codes]
        return parts

    def _wrong_type(self, role: str, expected: str) -> NoReturn:
        raise DataError(
            f"{self.rows.source}: the {role} column is of type {self.columns[role].type}; "
            f"{expected} are expected"
        )


@dataclass(frozen=True, eq=False)
class Blocks:
    """A file in blocks of rows, so that it never is in memory as a whole.

    rows: the file row by row, for messages; total: its number of rows, for progress, before blank
    lines are left out; roles: what it has columns for; tables: the blocks, each read when it is
    asked for. files, notes: as of a Table.
    """

    rows: Rows
    total: int
    roles: frozenset[str]
    tables: Iterator[Table]
    files: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def feature_texts(source: str, role: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of an event feature as text, empty where it is missing."""
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    known = ("string", "large_string", "string_view", "bool", "null")
    number = types.is_integer(column.type) or types.is_floating(column.type)
    if not (number or types.is_decimal(column.type) or str(column.type) in known):
        raise DataError(
            f"{source}: data.event_features={role.removeprefix(FEATURE)}: the column is of type "
            f"{column.type}; text, numbers or booleans are expected"
        )
    return column.cast(pa.string()).fill_null("")


def is_date(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds dates or timestamps."""
    return bool(types.is_timestamp(kind) or types.is_date(kind))

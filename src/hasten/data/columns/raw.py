"""Columns as a reader returns them: parsed cells, before ids and times are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

TimeUnit = Literal["s", "ms", "us", "ns"]


@dataclass(frozen=True, eq=False)
class IdColumn:
    """A dictionary-encoded column of ids.

    codes: int32 [n], positions in values; values: string or int64 Arrow array [distinct].
    """

    codes: NDArray[np.int32]
    values: pa.Array

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> IdColumn:
        """Encode an Arrow column; one that is encoded already is not copied to plain text."""
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        unified = column.unify_dictionaries()
        codes = np.concatenate([np.asarray(chunk.indices) for chunk in unified.chunks])
        return cls(codes.astype(np.int32, copy=False), unified.chunk(0).dictionary)

    def texts(self) -> list[str]:
        """The distinct values as Python strings."""
        texts: list[str] = self.values.cast(pa.string()).to_pylist()
        return texts

    def marked(self, values: list[bool]) -> NDArray[np.bool_]:
        """Bool [n]: the rows whose distinct value is marked."""
        rows: NDArray[np.bool_] = np.array(values, bool)[self.codes]
        return rows


@dataclass(frozen=True, eq=False)
class TimeColumn:
    """Times since 1970, int64 or float64 [n]. unit None: as ``data.time_unit`` says."""

    values: NDArray[np.int64] | NDArray[np.float64]
    unit: TimeUnit | None = None

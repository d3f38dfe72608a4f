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
    """A column of ids: the distinct values, and which of them each row holds.

    codes: int32 [n]; values: string or int64 Arrow array [distinct].
    """

    codes: NDArray[np.int32]
    values: pa.Array

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class TimeColumn:
    """Times: int64 or float64 [n] since 1970; unit None: the unit that the options name."""

    values: NDArray[np.int64] | NDArray[np.float64]
    unit: TimeUnit | None = None

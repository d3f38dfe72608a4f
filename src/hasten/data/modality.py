"""Item features: one matrix per modality (image, text, audio, ...), one row per item."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.errors import DataError

#: float16 or float32 [N, d]
Matrix = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Modality:
    """The features of one modality, one row per item.

    shape: items, width. digest: of the values in the order of the items (:func:`digest_of`).
    read: loads the values, called once; origin: the file that they come from, None for generated
    ones.
    """

    name: str
    shape: tuple[int, int]
    digest: str
    read: Callable[[], Matrix]
    origin: Path | None = None

    @classmethod
    def of(cls, name: str, values: Matrix, origin: Path | None = None) -> Modality:
        """From values in memory: float16 or float32 [N, d]."""
        return cls(name, (len(values), values.shape[1]), digest_of(values), lambda: values, origin)

    @property
    def width(self) -> int:
        return self.shape[1]

    @cached_property
    def values(self) -> Matrix:
        """float16 or float32 [N, d].

        Raises:
            DataError: the file they come from is missing or has changed.
        """
        values = self.read()
        if values.shape != self.shape or digest_of(values) != self.digest:
            raise DataError(
                f"the {self.name} features of {self.origin or 'the run folder'} are not those that "
                "the run was begun with: put the file back as it was, or begin a new run"
            )
        return values


def digest_of(values: Matrix) -> str:
    """sha256 over dtype, shape and values."""
    kind = "<f2" if values.dtype == np.float16 else "<f4"
    digest = hashlib.sha256(f"{kind} {values.shape[0]} {values.shape[1]}\n".encode())
    for start in range(0, len(values), 1024):
        digest.update(np.ascontiguousarray(values[start : start + 1024], kind).data)
    return digest.hexdigest()

"""Number the labels of a column that is read in blocks, in the order of their first occurrence."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from hasten.arrays import Int64
from hasten.data.columns.checks import Rows
from hasten.data.columns.ids import IdColumn, Mode, checked


class Labels:
    """The distinct labels so far: int64 while all are whole numbers, text otherwise.

    counts: int64 [labels], how often each was counted.
    """

    def __init__(self) -> None:
        self._labels: pa.Array = pa.array([], pa.int64())
        self.counts: Int64 = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def codes(self, blocks: list[pa.ChunkedArray]) -> NDArray[np.int32]:
        """int32 [n] the number of the label in each row of the blocks; new labels are added."""
        if any(types.is_string(block.type) for block in (self._labels, *blocks)):
            self._labels = self._labels.cast(pa.string())
            blocks = [block.cast(pa.string()) for block in blocks]
        # the labels come first, so that they keep their numbers
        chunks = [self._labels, *(chunk for block in blocks for chunk in block.chunks)]
        encoded = pa.chunked_array(chunks).dictionary_encode().unify_dictionaries()
        known, self._labels = len(self._labels), encoded.chunk(0).dictionary
        # of the chunks together: Arrow may leave out those without rows
        codes = np.concatenate([np.asarray(chunk.indices, np.int32) for chunk in encoded.chunks])
        return codes[known:]

    def count(self, codes: NDArray[np.int32]) -> None:
        """Count the labels of these rows."""
        counts = np.bincount(codes, minlength=len(self))
        counts[: len(self.counts)] += self.counts
        self.counts = counts

    def finished(
        self, kind: str, rows: list[Rows], mode: Mode
    ) -> tuple[pa.Array, NDArray[np.int32], Int64, tuple[str, ...]]:
        """The sorted labels that were counted, as :func:`~.columns.ids.unite` decides them.

        Also returns int32 [numbers given out so far] the position of each among them (-1 for
        labels that were not counted), int64 [labels] the counts, and notes. kind: what the labels
        name; rows: of all files, for messages. Raises DataError.
        """
        column = IdColumn(np.arange(len(self), dtype=np.int32), self._labels)
        found = checked(kind, (kind,), [column], rows, mode)
        place = found.codes[0]
        counts = np.bincount(place, self.counts, len(found.labels)).astype(np.int64)
        used = counts > 0
        if used.all():
            return found.labels, place, counts, found.notes
        position = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
        return found.labels.filter(pa.array(used)), position[place], counts[used], found.notes

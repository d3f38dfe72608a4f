"""Encode the labels of a column that is read in blocks, in order of first occurrence."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from hasten.arrays import Int64
from hasten.data.columns.checks import Rows
from hasten.data.columns.ids import IdColumn, Mode, checked

#: rows that are numbered anew at a time
_BLOCK = 1 << 20


class Labels:
    """The distinct labels so far: int64 while all are whole numbers, text otherwise.

    limit: a whole number from 0 below it is its own number until another label occurs; all labels
    after that are hashed. counts: int64 [numbers given out], how often each was counted.
    """

    def __init__(self, limit: int = 0) -> None:
        self.counts: Int64 = np.zeros(0, np.int64)
        self._limit = limit
        self._seen = np.zeros(0, bool)  # which labels are their own numbers
        self._hashed: pa.Array | None = None
        self._numbers = np.zeros(0, np.int32)  # of the hashed labels

    def codes(self, blocks: list[pa.ChunkedArray]) -> NDArray[np.int32]:
        """int32 [n] the number of the label in each row of the blocks; new labels are added."""
        if self._hashed is None:
            if (codes := self._own_numbers(blocks)) is not None:
                return codes
            self._hashed, self._numbers = self._labels(), self._given()
        if any(types.is_string(block.type) for block in (self._hashed, *blocks)):
            self._hashed = self._hashed.cast(pa.string())
            blocks = [block.cast(pa.string()) for block in blocks]
        # the labels come first, so that they keep their places
        chunks = [self._hashed, *(chunk for block in blocks for chunk in block.chunks)]
        encoded = pa.chunked_array(chunks).dictionary_encode().unify_dictionaries()
        known, self._hashed = len(self._hashed), encoded.chunk(0).dictionary
        # of the chunks together: Arrow may leave out those without rows
        places = np.concatenate([np.asarray(chunk.indices, np.int32) for chunk in encoded.chunks])
        if not len(self._seen):
            return places[known:]
        new = np.arange(1, 1 + len(self._hashed) - known, dtype=np.int32) + self._numbers[-1]
        self._numbers = np.concatenate([self._numbers, new])
        numbers: NDArray[np.int32] = self._numbers[places[known:]]
        return numbers

    def _own_numbers(self, blocks: list[pa.ChunkedArray]) -> NDArray[np.int32] | None:
        """The labels as their own numbers; None if one cannot be."""
        columns = [block.to_numpy() for block in blocks if types.is_int64(block.type)]
        if len(columns) < len(blocks) or any(
            column.min(initial=0) < 0 or column.max(initial=-1) >= self._limit for column in columns
        ):
            return None
        codes = np.concatenate(columns, dtype=np.int32, casting="unsafe")
        size = int(codes.max(initial=-1)) + 1
        if size > len(self._seen):
            self._seen = np.append(self._seen, np.zeros(size - len(self._seen), bool))
        self._seen[codes] = True
        return codes

    def _labels(self) -> pa.Array:
        """The labels so far."""
        return pa.array(np.flatnonzero(self._seen)) if self._hashed is None else self._hashed

    def _given(self) -> NDArray[np.int32]:
        """The number of each of the labels."""
        if self._hashed is None:
            return np.flatnonzero(self._seen).astype(np.int32)
        return self._numbers if len(self._seen) else np.arange(len(self._hashed), dtype=np.int32)

    def distinct(self) -> tuple[pa.Array, NDArray[np.int32]]:
        """The labels so far, and the number of each."""
        return self._labels(), self._given()

    def column(self, codes: NDArray[np.int32]) -> IdColumn:
        """The column of the numbers that :meth:`codes` gave out; they are changed in place."""
        labels, numbers = self._labels(), self._given()
        place = np.zeros(int(numbers.max(initial=-1)) + 1, np.int32)
        place[numbers] = np.arange(len(numbers), dtype=np.int32)
        for start in range(0, len(codes), _BLOCK):
            block = codes[start : start + _BLOCK]
            block[:] = place[block]
        return IdColumn(codes, labels)

    def count(self, codes: NDArray[np.int32]) -> None:
        """Count the labels of these rows."""
        counts = np.bincount(codes, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts

    def finished(
        self, kind: str, rows: list[Rows], mode: Mode
    ) -> tuple[pa.Array, NDArray[np.int32], Int64, tuple[str, ...]]:
        """The sorted labels that were counted, as :func:`~.columns.ids.unite` decides them.

        Also returns int32 [numbers given out so far] the position of each among them (-1 for
        numbers that were not counted), int64 [labels] the counts, and notes. kind: what the labels
        name; rows: of all files, for messages. Raises DataError.
        """
        labels, numbers = self._labels(), self._given()
        column = IdColumn(np.arange(len(labels), dtype=np.int32), labels)
        vocabulary = checked(kind, (kind,), [column], rows, mode)
        place, size = vocabulary.codes[0], int(numbers.max(initial=-1)) + 1
        counted = np.append(self.counts, np.zeros(size - len(self.counts), np.int64))[numbers]
        counts = np.bincount(place, counted, len(vocabulary.labels)).astype(np.int64)
        used, used_labels = counts > 0, vocabulary.labels
        if not used.all():
            position = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
            place, counts, used_labels = (
                position[place],
                counts[used],
                used_labels.filter(pa.array(used)),
            )
        positions = np.full(size, -1, np.int32)
        positions[numbers] = place
        return used_labels, positions, counts, vocabulary.notes

"""Chunks of queries of one attention head, over buckets (see :mod:`hasten.ops.buckets`).

The queries of a chunk see only the keys up to its end, which saves nearly half the work of long
sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from hasten.ops.buckets import Bucket

#: queries per chunk: fewer waste less work on masked keys, more make larger products
CHUNK = 64


@dataclass(frozen=True)
class HeadChunk:
    """A chunk of queries of one head in one bucket. columns: the head's columns in [T, D]."""

    bucket: Bucket
    columns: slice
    queries: slice

    @property
    def cells(self) -> tuple[int, int, int]:
        """The shape of the attention weights."""
        return self.bucket.rows, self.queries.stop - self.queries.start, self.queries.stop

    @property
    def sees_all(self) -> bool:
        """Whether the chunk sees all keys; it is the first of its head."""
        return bool(self.queries.stop == self.bucket.length)

    def of_queries(self, tensor: Tensor) -> Tensor:
        """[rows, chunk, d] view of the queries' rows of a [T, D] tensor."""
        return self._of(tensor)[:, self.queries]

    def of_keys(self, tensor: Tensor) -> Tensor:
        """[rows, keys seen, d] view of the rows of the keys that the chunk sees."""
        return self._of(tensor)[:, : self.queries.stop]

    def _of(self, tensor: Tensor) -> Tensor:
        part = tensor[self.bucket.start : self.bucket.stop, self.columns]
        return part.view(self.bucket.rows, self.bucket.length, part.shape[1])


def chunks(length: int) -> list[slice]:
    """Chunks of queries, the last first, because it sees all keys."""
    return [slice(start, min(start + CHUNK, length)) for start in reversed(range(0, length, CHUNK))]


def head_chunks(buckets: Sequence[Bucket], heads: int, width: int) -> list[HeadChunk]:
    """The chunks of all buckets and heads."""
    size = width // heads
    return [
        HeadChunk(bucket, slice(head * size, (head + 1) * size), queries)
        for bucket in buckets
        for head in range(heads)
        for queries in chunks(bucket.length)
    ]

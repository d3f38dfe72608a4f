"""Buckets of sequences of similar length, with little padding.

Sequences are sorted by length, longest first, and cut into buckets. Each bucket is a left-aligned
[rows, length] rectangle; one flat token array holds all buckets, one after the other. Token-wise
layers run on the flat array, attention on each rectangle (a view). A new bucket starts when further
padding would cost more than the kernel launches of a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch

from hasten.arrays import Int64
from hasten.ops.dense.product import rounded_rows

#: padded tokens that cost as much as one more bucket (measured for two blocks of width 50)
SLACK_CPU = 128
SLACK_DEVICE = 1 << 16


@dataclass(frozen=True)
class Bucket:
    """Tokens start .. start + rows*length of the flat array, ``rows`` sequences of ``length``."""

    start: int
    rows: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.length


def make_buckets(lengths: Int64, slack: int) -> list[Bucket]:
    """Buckets for sequences of these lengths, which must be sorted, longest first.

    slack: start a new bucket when the padding of the current one would exceed this many tokens.
    """
    assert len(lengths) == 0 or bool((np.diff(lengths) <= 0).all())
    buckets: list[Bucket] = []
    token_start = first_row = wasted = 0
    changes = np.flatnonzero(np.diff(lengths)) + 1
    for begin, end in zip([0, *changes], [*changes, len(lengths)], strict=True):
        if begin == end:
            continue
        longest, length = int(lengths[first_row]), int(lengths[begin])
        wasted += int(end - begin) * (longest - length)
        if wasted > slack:
            buckets.append(Bucket(token_start, int(begin - first_row), longest))
            token_start, first_row, wasted = buckets[-1].stop, int(begin), 0
    if first_row < len(lengths):
        rows = len(lengths) - first_row
        buckets.append(Bucket(token_start, rows, int(lengths[first_row])))
    return buckets


_like_bf16: ContextVar[bool] = ContextVar("_like_bf16", default=False)


@contextmanager
def padded_like_bf16() -> Iterator[None]:
    """Pad batches in fp32 as in bf16, so that both draw the same dropout masks."""
    token = _like_bf16.set(True)
    try:
        yield
    finally:
        _like_bf16.reset(token)


def pads_tokens(device: torch.device) -> bool:
    """Whether batches get a :func:`with_padding_bucket`: on a CPU under autocast."""
    return device.type == "cpu" and (torch.is_autocast_enabled("cpu") or _like_bf16.get())


def with_padding_bucket(buckets: list[Bucket]) -> list[Bucket]:
    """The buckets, and if needed one of padding tokens that rounds T up to rounded_rows.

    Few values of T occur then. The padding bucket has rows of length 1.
    """
    size = buckets[-1].stop
    missing = rounded_rows(size) - size
    return [*buckets, Bucket(size, missing, 1)] if missing else buckets


def flat_indices(lengths: Int64, buckets: list[Bucket]) -> Int64:
    """Index in the flat token array of every real token, sequence by sequence, in order."""
    begins = np.concatenate(
        [
            bucket.start + np.arange(bucket.rows, dtype=np.int64) * bucket.length
            for bucket in buckets
        ]
        or [np.zeros(0, np.int64)]
    )
    offsets = np.cumsum(lengths) - lengths
    positions: Int64 = np.arange(int(lengths.sum()), dtype=np.int64)
    positions += np.repeat(begins - offsets, lengths)
    return positions

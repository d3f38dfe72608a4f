"""Time-ordered splits of sequences, stored as positions: train, then valid, then test."""

from __future__ import annotations

import numpy as np

from hasten.arrays import Int64
from hasten.config import InteractionOptions
from hasten.data import splits
from hasten.data.columns.times import show
from hasten.data.interactions import time_splits
from hasten.errors import DataError, UsageError

_BLOCK = 1 << 24


def divide(
    offsets: Int64, time: Int64 | None, options: InteractionOptions
) -> tuple[list[Int64], str]:
    """Where the parts of each user's sequence begin and end (4 times int64 [U]), and in words.

    offsets: int64 [U + 1]; time: int64 [n], ascending for each user, or None. The same parts as in
    memory (:mod:`hasten.data.splits`).

    Raises:
        DataError: the split leaves a part empty.
        UsageError: a split that is not in the order of time.
    """
    begins, ends = offsets[:-1], offsets[1:]
    counts, order = ends - begins, splits.order_words(time is not None)
    chosen = "leave-last-two-out" if options.split == "auto" else options.split
    if chosen == "time" and options.time_window is not None:
        return _by_window(offsets, time, options.time_window)
    if chosen == "ratio" and options.ratio_order == "time":
        valid, test = splits.ratio_sizes(counts, options.ratios, options.ratio_rounding)
        words = splits.ratio_words(options.ratios, options.ratio_rounding, order)
    elif chosen in ("leave-last-two-out", "leave-last-one-out"):
        left = 2 if chosen == "leave-last-two-out" else 1
        splits.require_length(counts, left, chosen)
        test = (counts > left).astype(np.int64)
        valid, words = test * (left - 1), f"{chosen}, {order}"
    else:
        raise UsageError(
            f"data.split={options.split}: a store is divided in the order of time: "
            "leave-last-two-out, leave-last-one-out, ratio, or time with data.time_window; for "
            "others train from the file"
        )
    return [begins, ends - test - valid, ends - test, ends], words


def _by_window(offsets: Int64, time: Int64 | None, window: float) -> tuple[list[Int64], str]:
    if time is None:
        raise DataError("data.split=time needs times, but the data have none")
    end = max(int(time[i : i + _BLOCK].max()) for i in range(0, len(time), _BLOCK)) + 1
    valid, test = time_splits.window_times(window, end)
    bounds = [offsets[:-1], *(_before(offsets, time, at) for at in (valid, test)), offsets[1:]]
    sizes = [int(np.sum(bounds[p + 1] - bounds[p])) for p in range(3)]
    return bounds, time_splits.describe(sizes, valid, test, show(end - 1))


def _before(offsets: Int64, time: Int64, limit: int) -> Int64:
    """int64 [U] where the events of each user before this time end."""
    ends = offsets[:-1].copy()
    firsts = np.unique(np.searchsorted(offsets, range(0, len(time), _BLOCK), "right") - 1)
    for first, stop in zip(firsts, [*firsts[1:], len(ends)], strict=True):
        chunk_offsets = offsets[first : stop + 1]
        earlier = np.concatenate(
            [[0], np.cumsum(time[chunk_offsets[0] : chunk_offsets[-1]] < limit)]
        )
        ends[first:stop] += np.diff(earlier[chunk_offsets - chunk_offsets[0]])
    return ends

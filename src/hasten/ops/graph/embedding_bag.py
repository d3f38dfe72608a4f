"""Embedding-bag sums with equal work for all threads of a CPU.

``embedding_bag`` gives every thread the same number of bags. If large bags are adjacent (items and
entities before users), one thread gets most of the entries: 1.7 times its share with two threads on
a graph as large as Amazon-book, 5.9 times with sixteen. So large sums are computed in blocks with
equal numbers of entries, and bags of similar size within a block. The order of summation within a
bag does not change, so the result is the same bit for bit.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64

#: entries of a block that justify a separate call
_MIN_BLOCK_ENTRIES = 100_000
#: factor by which a thread may exceed its share before more blocks are used
_UNEQUAL = 1.1
_MAX_BLOCKS = 64


def embedding_bag_sums(offsets: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """[M, D] ``out[i] = sum of values[e] x[columns[e]]`` for offsets[i] <= e < offsets[i + 1].

    offsets: int32 [M + 1]; columns: int32 [E]; values: [E]; x: [N, D]; without gradient, on a CPU.
    """
    bounds = equal_blocks(offsets.numpy(), torch.get_num_threads())
    if len(bounds) == 2:
        return _bags(offsets, columns, values, x)
    out = x.new_empty(len(offsets) - 1, x.shape[1])
    at = offsets[torch.from_numpy(bounds)].tolist()
    for rows, entries in zip(pairwise(bounds.tolist()), pairwise(at), strict=True):
        part, some = slice(*rows), slice(*entries)
        starts = offsets[rows[0] : rows[1] + 1] - entries[0]
        out[part] = _bags(starts, columns[some], values[some], x)
    return out


def equal_blocks(offsets: np.ndarray, threads: int) -> Int64:
    """Bounds [K + 1] of as few blocks of bags as keep all threads about equally busy."""
    bags, entries = len(offsets) - 1, int(offsets[-1])
    best, blocks, most = np.array([0, bags]), 1, min(_MAX_BLOCKS, entries // _MIN_BLOCK_ENTRIES)
    if most < 2:
        return best
    least = busiest(offsets, best, threads)
    while least > _UNEQUAL * entries / threads and 2 * blocks <= most:
        blocks *= 2
        inner = np.searchsorted(offsets, np.linspace(0, entries, blocks + 1)[1:-1])
        bounds = np.unique(np.concatenate([[0], inner, [bags]]))
        found = busiest(offsets, bounds, threads)
        if found < least:
            best, least = bounds, found
    return best


def busiest(offsets: np.ndarray, bounds: Int64, threads: int) -> int:
    """The sum over blocks of the entries of the thread with the most entries."""
    low, high = bounds[:-1, None], bounds[1:, None]
    share = -(-(high - low) // threads)
    cuts = np.minimum(low + share * np.arange(threads + 1), high)
    return int(np.diff(offsets[cuts], axis=1).max(axis=1).sum())


def _bags(offsets: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return F.embedding_bag(
        columns, x, offsets, mode="sum", per_sample_weights=values, include_last_offset=True
    )

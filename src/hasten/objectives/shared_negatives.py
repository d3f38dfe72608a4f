"""Negatives for sampled softmax, shared by all targets of a step.

The sample is a function of (seed, epoch, step): every process and every micro-batch draws the same.

- ``uniform``: items of the catalog, with repetition;
- ``in-batch``: targets of the global batch, each position at most once, so that frequent items are
  drawn often; all of them if there are no more than ``negatives``;
- ``mixed``: half of each (Yang et al. 2020).

With k items drawn uniformly from N and b from the batch, item j is expected
``k / N + b n_j / n`` times, n_j of the n training targets being item j. The logarithm of how often
it was drawn over this number corrects its score (the logQ correction: Bengio & Senécal 2008; Yi et
al. 2019), for the mixture too (the balance heuristic of Veach & Guibas 1995).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64, ragged_positions
from hasten.ops.random import Stream, bits, integers, key

Sampling = Literal["uniform", "in-batch", "mixed"]


@dataclass(frozen=True)
class Sample:
    """items: int64 [S] distinct, ascending. log_weights: [S] log(times drawn / times expected)."""

    items: Int64
    log_weights: NDArray[np.float64]


class SharedNegatives:
    """Draws ``negatives`` items for a step.

    frequencies: [N] in how many training targets each item is.
    """

    def __init__(self, frequencies: Int64, sampling: Sampling, negatives: int) -> None:
        self.shares = frequencies / frequencies.sum()
        self.of_batch = {"uniform": 0, "mixed": negatives // 2, "in-batch": negatives}[sampling]
        self.uniform = negatives - self.of_batch

    def sample(
        self, seed: int, epoch: int, step: int, count: int, target: Callable[[Int64], Int64]
    ) -> Sample:
        """The sample of a step.

        count: of the targets of the global batch. target: those with these numbers, int64 [k].
        """
        base = key(seed, Stream.NEGATIVES, epoch, step)
        uniform_items = integers(len(self.shares), base, torch.arange(self.uniform)).numpy()
        chosen = np.arange(min(self.of_batch, count))
        if 0 < self.of_batch < count:  # the first of a permutation
            keys = bits(key(seed, Stream.NEGATIVES, epoch, step, 1), torch.arange(count)).numpy()
            chosen = np.argpartition(keys, self.of_batch)[: self.of_batch]
        return self.weighted(uniform_items, target(chosen))

    def weighted(self, uniform: Int64, of_batch: Int64) -> Sample:
        """The distinct items of both draws, with their weights."""
        items, times = np.unique(np.concatenate([uniform, of_batch]), return_counts=True)
        expected = len(uniform) / len(self.shares) + len(of_batch) * self.shares[items]
        return Sample(items, np.log(times / expected))


@dataclass(frozen=True)
class SharedItems:
    """The negatives of a batch of pairs or queries, and which of them a micro-batch leaves out.

    items: int64 [S], ascending. log_weights: float32 [S], log(times drawn / times expected).
    masked: int64 ascending ``t * S + j``, the negatives j that are an item of t.
    """

    items: Tensor
    log_weights: Tensor
    masked: Tensor


def shared_items(negatives: Int64, positives: Int64, catalog: int) -> SharedItems:
    """The negatives of all pairs of a batch, for a micro-batch with these positives.

    negatives: one of each pair, drawn from the items of the catalog.
    """
    items, times = np.unique(negatives, return_counts=True)
    weights = np.log(times * (catalog / len(negatives))).astype(np.float32)
    pair = np.arange(len(positives) + 1)
    masked = masked_pairs(items, positives, pair[:-1], pair)
    return SharedItems(*map(torch.from_numpy, (items, weights, masked)))


def masked_pairs(sampled: Int64, items: Int64, owner: Int64, offsets: Int64) -> Int64:
    """int64 ascending ``t * S + j``: which sampled items are no negatives of which targets.

    sampled: int64 [S] ascending. ``items[i]`` is none for the targets of ``owner[i]``, which are
    ``offsets[owner[i]]`` to ``offsets[owner[i] + 1]``.
    """
    column = np.minimum(np.searchsorted(sampled, items), len(sampled) - 1)
    is_item = sampled[column] == items
    target, pair = ragged_positions(offsets, owner[is_item])
    masked: Int64 = np.sort(target * len(sampled) + np.repeat(column[is_item], np.diff(pair)))
    return masked

"""Medians with intervals that assume nothing about the distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TypedDict


class Spread(TypedDict):
    """A median and an interval that covers the true median with probability ``coverage``."""

    median: float
    low: float
    high: float
    coverage: float
    count: int


def spread(values: Sequence[float], confidence: float = 0.95) -> Spread:
    """The median and its order-statistic interval.

    The interval between the k-th smallest and the k-th largest of n values covers the median with
    probability ``1 - 2 P(Binomial(n, 1/2) < k)``; k is the largest that still reaches
    ``confidence``. Below six values nothing does: then the whole range is given with the coverage
    it has.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    n = len(ordered)
    k = 1
    while 2 * (k + 1) <= n and _coverage(n, k + 1) >= confidence:
        k += 1
    return Spread(
        median=median(ordered),
        low=ordered[k - 1],
        high=ordered[n - k],
        coverage=round(_coverage(n, k), 4),
        count=n,
    )


def _coverage(n: int, k: int) -> float:
    below = sum(math.comb(n, i) for i in range(k))
    return max(0.0, 1.0 - 2.0 * below / float(2**n))

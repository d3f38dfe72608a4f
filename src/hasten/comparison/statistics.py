"""Paired differences of a metric over seeds and users: estimate, variance, interval, tests.

Each setting is trained with the same S seeds and evaluated on the same U users (triples, for
knowledge graphs). A difference varies over both, so its variance has two crossed parts. With few
seeds, resampling them gives intervals that are far too narrow: Hesterberg (2015, "What teachers
should know about the bootstrap") shows it for small samples, Owen (2007, "The pigeonhole
bootstrap") that a crossed sample is resampled factor by factor. Here:

- users are resampled with replacement, which keeps the skew of a metric's values;
- the seeds' part is drawn from Student's t with S - 1 degrees of freedom and the standard error of
  the mean over seeds, since a mean over many users is close to normal;
- an interval is that of the percentiles of the sum of both. The noise of single (seed, user) pairs
  is in both standard errors; it is counted once (Cameron, Gelbach and Miller 2011).

With one seed, only the users' part is known: the interval then is about these two runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

#: the level of a test; intervals have the level 1 - ALPHA
ALPHA = 0.05
_DRAWS, _MIN_DRAWS = 10_000, 1_000
#: resampled users of all draws together, about 3 s
_WORK = 2 * 10**8
_CHUNK = 2**22
#: with more degrees of freedom, the normal distribution differs by less than 0.3 %
_NORMAL = 1000


@dataclass(frozen=True, eq=False)
class Paired:
    """A metric of the baseline and of an alternative, by seed and user.

    baseline, alternative: float64 [S, U] sums; weight: float64 [U] their divisors in the mean.
    higher_is_better: False for ranks.
    """

    baseline: Float64
    alternative: Float64
    weight: Float64
    higher_is_better: bool = True


@dataclass(frozen=True, eq=False)
class Difference:
    """How much better (positive) or worse an alternative is.

    estimate: relative to the baseline, or absolute. seed_variance: the part of the estimate's
    variance that more seeds reduce, 0 with one seed; user_variance: the part that more users
    reduce. draws: the distribution of which the intervals and the tests are made.
    """

    estimate: float
    seeds: int
    users: int
    seed_variance: float
    user_variance: float
    draws: Float64

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """The interval of level ``1 - alpha``."""
        low, high = np.quantile(self.draws, [alpha / 2, 1 - alpha / 2])
        return float(low), float(high)

    def p_at_most(self, value: float) -> float:
        """P of the hypothesis that the difference is at most ``value``."""
        return self._share(self.draws <= value)

    def p_at_least(self, value: float) -> float:
        """P of the hypothesis that the difference is at least ``value``."""
        return self._share(self.draws >= value)

    def p_none(self) -> float:
        """P of the hypothesis that there is no difference (two-sided)."""
        return min(1.0, 2 * min(self.p_at_most(0), self.p_at_least(0)))

    def p_equivalent(self, margin: float) -> float:
        """P of the hypothesis that the difference is ``margin`` or larger, in either direction.

        Two one-sided tests (Schuirmann 1987).
        """
        return max(self.p_at_most(-margin), self.p_at_least(margin))

    def _share(self, extreme: NDArray[np.bool_]) -> float:
        return (1 + int(extreme.sum())) / (1 + len(extreme))


def difference(
    paired: Paired, relative: bool, *, seed: int = 0, draws: int | None = None
) -> Difference:
    """Estimate the difference; seed, draws: of the resampling.

    relative: as a share of the baseline, whose mean must not be 0.
    """
    sign = 1.0 if paired.higher_is_better else -1.0
    seeds, users = paired.baseline.shape
    scale = paired.baseline.sum() / seeds if relative else paired.weight.sum()
    assert scale != 0, "no difference relative to 0"
    gain = sign * (paired.alternative - paired.baseline)
    divisor = paired.baseline if relative else np.broadcast_to(paired.weight, gain.shape)
    estimate = float(gain.sum() / divisor.sum())
    # the influence of each (seed, user) on the estimate, which is their mean up to rounding
    influence = (gain - estimate * divisor) * (users / scale)
    by_seed, by_user, by_pair = _variances(influence)
    user_variance = max(0.0, by_user - by_pair)
    rng = np.random.default_rng(seed)
    columns = np.stack([gain.mean(0), divisor.mean(0)], axis=1)
    count = draws or min(_DRAWS, max(_MIN_DRAWS, _WORK // users))
    errors = _resampled(columns, count, rng) - estimate
    errors *= math.sqrt(user_variance / by_user) if by_user > 0 else 0.0
    if seeds > 1:
        errors += math.sqrt(by_seed) * rng.standard_t(seeds - 1, count)
    return Difference(estimate, seeds, users, by_seed, user_variance, estimate + errors)


def _variances(influence: Float64) -> tuple[float, float, float]:
    """The variances of the mean of [S, U] values by seeds, by users, and by their interaction."""
    seeds, users = influence.shape
    of_seed, of_user = influence.mean(1), influence.mean(0)
    by_user = float(of_user.var(ddof=1) / users)
    if seeds == 1:
        return 0.0, by_user, 0.0
    residual = influence - of_seed[:, None] - of_user + influence.mean()
    by_pair = float((residual**2).sum() / ((seeds - 1) * (users - 1)) / (seeds * users))
    return float(of_seed.var(ddof=1) / seeds), by_user, by_pair


def _resampled(columns: Float64, draws: int, rng: np.random.Generator) -> Float64:
    """The ratio of the sums of two columns, [U, 2], for samples of the rows with replacement."""
    users = len(columns)
    means = np.empty(draws)
    size = max(1, _CHUNK // users)
    for start in range(0, draws, size):
        count = min(size, draws - start)
        rows = rng.integers(0, users, (count, users))
        rows += np.arange(count)[:, None] * users
        times = np.bincount(rows.reshape(-1), minlength=count * users).reshape(count, users)
        above, below = (times @ columns).T
        # a sample without any of the baseline's hits has no ratio
        means[start : start + count] = np.divide(
            above, below, out=np.zeros(count), where=below != 0
        )
    return means


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for several comparisons (Holm 1979), in the order given."""
    order = np.argsort(p, kind="stable")
    corrected, largest = [0.0] * len(p), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = largest
    return corrected


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of ratios, with its interval; NaN bounds for a single one."""

    estimate: float
    low: float
    high: float


def ratio(baseline: Sequence[float], alternative: Sequence[float]) -> Ratio:
    """The ratio of paired measurements such as times, with a t interval of their logarithms."""
    logs = np.log(np.asarray(alternative, np.float64) / np.asarray(baseline, np.float64))
    mean, half = float(logs.mean()), math.nan
    if len(logs) > 1:
        error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
        half = student_quantile(1 - ALPHA / 2, len(logs) - 1) * error
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def student_cdf(t: float, freedom: int) -> float:
    """P(T <= t) of Student's t with ``freedom`` degrees of freedom, in closed form.

    Abramowitz and Stegun 1964, 26.7.3-4.
    """
    if freedom > _NORMAL:
        return NormalDist().cdf(t)
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for n in range(2 + odd, freedom - 1, 2):
        term *= square * (n - 1) / n
        total += term
    inner = math.sin(angle) * total
    within = 2 / math.pi * (angle + inner) if odd else inner
    return 0.5 + within / 2


def student_quantile(p: float, freedom: int) -> float:
    """The t with P(T <= t) = p, for 0 < p < 1, by bisection."""
    if p < 0.5:
        return -student_quantile(1 - p, freedom)
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2

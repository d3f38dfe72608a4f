"""Ranking metrics from the counts of :func:`hasten.ops.ranking.rank_all.rank_all`.

The rank of a target is realistic: ``1 + higher + tied / 2``, the mean over all orders of tied
scores (Berrendorf et al. 2020, "On the ambiguity of rank-based evaluation"). It can be fractional;
a target is within a cut-off k if its rank is at most k. A model with constant scores thus performs
like a random one. Ranks can also be optimistic (``1 + higher``), pessimistic (``1 + higher +
tied``) or rounded, the realistic rank rounded up.

For a query with targets T, whose ranks in ascending order are r_1, r_2, ...:

=============  ====================================================================
``hr@k``       1 if any target is within k
``recall@k``   share of T within k
``precision@k``  number of targets within k, divided by k
``ndcg@k``     sum of 1/log2(1 + r_i) over targets within k, divided by the same sum
               for the ranks 1 .. min(size of T, k)
``ndcg_kgat_legacy@k``  as ndcg@k, but divided by the sum for the ranks 1 .. number of targets
               within k, as in the published code of KGAT. It is higher: 1 for a single hit at
               rank 1, however many targets are missed. Only for comparisons with that code
``ndcg_kgat@k``  as ndcg_kgat_legacy@k, but counting the targets within max(k, 100): what that code
               reports with its default cut-offs, of which 100 is the largest
``ndcg_rectools@k``  as ndcg@k, but divided by the sum for the ranks 1 .. k, as RecTools does by
               default: 1 only if all first k items are targets
``map@k``      sum of i/r_i over targets within k, divided by min(size of T, k)
``map_rectools@k``  the same sum divided by the size of T, as RecTools does by default
``mrr``        1/r_1; ``mrr@k``: 0 unless r_1 is within k
``hits@k``     share of all targets, of all queries together, that are within k
``mr``         mean rank of all targets (lower is better)
``amri``       ``1 - sum(rank - 1) / sum(competitors / 2)`` over all targets: 1 is perfect, 0 is
               random (adjusted mean rank index, Berrendorf et al. 2020)
=============  ====================================================================

If ties put more than k targets within k, only the best k count (except in ``hits``, which treats
targets independently).

All metrics except ``hits``, ``mr`` and ``amri`` are averaged over the queries that have targets, in
float64.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.errors import ConfigurationError, did_you_mean

Float64 = NDArray[np.float64]

#: metric -> whether it has a cut-off k
_CUT_OFF = {
    "ndcg": "needed",
    "ndcg_kgat_legacy": "needed",
    "ndcg_kgat": "needed",
    "ndcg_rectools": "needed",
    "hr": "needed",
    "recall": "needed",
    "precision": "needed",
    "map": "needed",
    "map_rectools": "needed",
    "hits": "needed",
    "mrr": "possible",
    "mr": "refused",
    "amri": "refused",
}
_PER_TARGET = ("hits", "mr")
#: the largest default cut-off of KGAT's published code
_KGAT_CUT_OFF = 100
Ties = Literal["realistic", "optimistic", "pessimistic", "rounded"]
_SHARE_OF_TIED = {"realistic": 0.5, "optimistic": 0.0, "pessimistic": 1.0, "rounded": 0.5}


@dataclass(frozen=True)
class Metric:
    """A metric and its cut-off k (None: the whole list)."""

    kind: str
    k: int | None

    def __str__(self) -> str:
        return self.kind if self.k is None else f"{self.kind}@{self.k}"


@dataclass(frozen=True, eq=False)
class PerQuery:
    """A metric before averaging: it is ``sum(sums) / sum(counts)``.

    sums: float64 [Q]. counts: int64 [Q], a query's part of the denominator: 1 if it has targets,
    else 0; for ``hits`` and ``mr`` the number of its targets; for ``amri`` of its competitors.
    """

    sums: Float64
    counts: Int64

    @property
    def values(self) -> Float64:
        """The metric of each query [Q], NaN for a query without targets."""
        values: Float64 = np.full(len(self.sums), np.nan)
        np.divide(self.sums, self.counts, out=values, where=self.counts > 0)
        return values

    def mean(self) -> float:
        """The metric, summed in the order of the queries; NaN if nothing was ranked."""
        count = int(self.counts.sum())
        return float(self.sums.sum()) / count if count else float("nan")

    def margin(self, unit: Int64 | None = None) -> float:
        """Half of the 95 % interval of the mean of a sample.

        unit: int64 [Q], what was sampled for each query, such as the triple of its two directions;
        None: the queries themselves.
        """
        errors = self.sums - self.mean() * self.counts
        if unit is not None:
            errors = np.bincount(unit, errors)
        return 1.96 * float(np.sqrt((errors**2).sum())) / max(1, int(self.counts.sum()))


def parse_metric(name: str) -> Metric:
    """Parse ``ndcg@10``. Raises ConfigurationError, which suggests the nearest name."""
    kind, at, cut = name.partition("@")
    rule = _CUT_OFF.get(kind)
    if rule is None:
        hint = did_you_mean(name.lower(), [f"{known}{at}{cut}" for known in _CUT_OFF])
        raise ConfigurationError(f"unknown metric {name!r}{hint} (there are: {_offered()})")
    if not at:
        if rule == "needed":
            raise ConfigurationError(f"metric {name!r} needs a cut-off; did you mean '{kind}@10'?")
        return Metric(kind, None)
    if rule == "refused":
        raise ConfigurationError(f"metric {name!r} takes no cut-off; did you mean {kind!r}?")
    if re.fullmatch(r"[1-9][0-9]{0,8}", cut) is None:
        raise ConfigurationError(
            f"metric {name!r}: the cut-off must be a whole number from 1, as in '{kind}@10'"
        )
    return Metric(kind, int(cut))


def higher_is_better(name: str) -> bool:
    """Whether larger values of this metric are better."""
    return parse_metric(name).kind != "mr"


def ranks_of(higher: Int64, tied: Int64, ties: Ties = "realistic") -> Float64:
    """float64 ranks: mean (also rounded up), best or worst over all orders of tied scores."""
    ranks = 1.0 + higher + tied * _SHARE_OF_TIED[ties]
    return np.ceil(ranks) if ties == "rounded" else ranks


def metrics_per_query(
    names: Sequence[str],
    offsets: Int64,
    higher: Int64,
    tied: Int64,
    competitors: Int64 | None = None,
    ties: Ties = "realistic",
) -> dict[str, PerQuery]:
    """Compute the metrics of each query.

    offsets: int64 [Q + 1], the targets of each query; higher, tied: int64 [S], counts among all
    candidates, including other targets of the query; competitors: int64 [S], the number of other
    candidates, needed for amri.
    """
    ranked = _Ranked.build(offsets, ranks_of(higher, tied, ties), competitors)
    return {str(metric): ranked.measure(metric) for metric in map(parse_metric, names)}


@dataclass(frozen=True, eq=False)
class _Ranked:
    """The ranks of the targets, ascending within each query.

    rank: float64 [S]; query: int64 [S]; position: int64 [S], 1 for the best target of a query;
    competitors: int64 [S]; targets: int64 [Q], numbers of targets.
    """

    rank: Float64
    query: Int64
    position: Int64
    competitors: Int64 | None
    targets: Int64

    @classmethod
    def build(cls, offsets: Int64, rank: Float64, competitors: Int64 | None) -> _Ranked:
        targets = np.diff(offsets)
        query = np.repeat(np.arange(len(targets), dtype=np.int64), targets)
        order = np.lexsort((rank, query))
        position = np.arange(1, len(rank) + 1) - offsets[query]
        if competitors is not None:
            competitors = competitors[order]
        return cls(rank[order], query, position, competitors, targets)

    def measure(self, metric: Metric) -> PerQuery:
        if metric.kind == "amri":
            return self.adjusted()
        k = np.inf if metric.k is None else float(metric.k)
        sums = _MEASURES[metric.kind](self, k).astype(np.float64)
        if metric.kind in _PER_TARGET:
            return PerQuery(sums, self.targets)
        return PerQuery(sums, (self.targets > 0).astype(np.int64))

    def adjusted(self) -> PerQuery:
        """The adjusted mean rank index, a ratio of sums over all targets."""
        assert self.competitors is not None, "amri needs the number of competitors"
        better = self.competitors - 2.0 * (self.rank - 1.0)
        return PerQuery(self.sum(better), self.sum(self.competitors).astype(np.int64))

    def within(self, k: float) -> NDArray[np.bool_]:
        """[S] whether targets are within k, at most k for each query."""
        return (self.rank <= k) & (self.position <= k)

    def sum(self, per_target: NDArray[Any]) -> Float64:
        """[Q] sums over each query's targets."""
        sums = np.bincount(self.query, weights=per_target, minlength=len(self.targets))
        return sums.astype(np.float64)

    def best(self, k: float) -> Int64:
        """[Q] the largest possible number of targets within k, at least 1 (a divisor)."""
        return np.maximum(np.minimum(self.targets, k), 1).astype(np.int64)


def _ndcg(ranked: _Ranked, k: float, best: Int64) -> Float64:
    """best: [Q]; the divisor is the gain of so many targets at the ranks 1, 2, ..."""
    gains = ranked.sum(ranked.within(k) / np.log2(1.0 + ranked.rank))
    ideal = np.cumsum(1.0 / np.log2(1.0 + np.arange(1, int(best.max(initial=1)) + 1)))
    return np.asarray(gains / ideal[best - 1], np.float64)


def _ndcg_of_hits(ranked: _Ranked, k: float, cut: float) -> Float64:
    """NDCG divided by the ideal of as many targets as are within ``cut``, at most k."""
    hits = ranked.sum(ranked.within(cut)).astype(np.int64)
    return _ndcg(ranked, k, np.clip(hits, 1, int(k)))


def _precisions(ranked: _Ranked, k: float) -> Float64:
    """[Q] the sums of i/r_i over the targets within k."""
    return ranked.sum(ranked.within(k) * ranked.position / ranked.rank)


#: metric -> its sum of each query [Q]
_MEASURES: dict[str, Callable[[_Ranked, float], NDArray[Any]]] = {
    "ndcg": lambda ranked, k: _ndcg(ranked, k, ranked.best(k)),
    "ndcg_kgat_legacy": lambda ranked, k: _ndcg_of_hits(ranked, k, k),
    "ndcg_kgat": lambda ranked, k: _ndcg_of_hits(ranked, k, max(k, _KGAT_CUT_OFF)),
    "ndcg_rectools": lambda ranked, k: _ndcg(ranked, k, np.full(len(ranked.targets), int(k))),
    "hr": lambda ranked, k: ranked.sum(ranked.within(k)) > 0,
    "recall": lambda ranked, k: ranked.sum(ranked.within(k)) / ranked.best(np.inf),
    "precision": lambda ranked, k: ranked.sum(ranked.within(k)) / k,
    "map": lambda ranked, k: _precisions(ranked, k) / ranked.best(k),
    "map_rectools": lambda ranked, k: _precisions(ranked, k) / ranked.best(np.inf),
    "mrr": lambda ranked, k: ranked.sum(ranked.within(k) * (ranked.position == 1) / ranked.rank),
    "hits": lambda ranked, k: ranked.sum(ranked.rank <= k),
    "mr": lambda ranked, _: ranked.sum(ranked.rank),
}


def _offered() -> str:
    return ", ".join(
        {"needed": f"{kind}@k", "possible": f"{kind}, {kind}@k", "refused": kind}[rule]
        for kind, rule in _CUT_OFF.items()
    )

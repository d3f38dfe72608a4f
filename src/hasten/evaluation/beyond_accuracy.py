"""Beyond-accuracy metrics of recommended lists: coverage, novelty, diversity.

L_u is the list of user u, at most k items; c(i) the number of distinct users with a training event
of item i; U the number of users with a training event.

======================  ==========================================================================
``coverage@k``          share of the candidate items that are in at least one list (catalog
                        coverage, Ge et al. 2010, "Beyond accuracy")
``novelty@k``           mean of -log2(max(c(i), 1) / U) over the items of a list, averaged over
                        lists (mean self-information, Zhou et al. 2010, "Solving the apparent
                        diversity-accuracy dilemma of recommender systems")
``diversity@k``         mean of 1 - s(i, j) over the pairs of a list, averaged over lists with two
                        items or more (intra-list distance: Ziegler et al. 2005, "Improving
                        recommendation lists through topic diversification"). s is the cosine of
                        the items' sets of training users, |U_i & U_j| / sqrt(c(i) c(j)), 0 for an
                        item without any. Of more than 1,000 lists, 1,000 evenly spaced ones
``popularity@k``        mean of c(i) over the items of a list, averaged over lists (average
                        recommendation popularity, Yin et al. 2012, "Challenging the long tail
                        recommendation")
``popularity_lift@k``   ``popularity@k`` divided by the same mean over the histories, minus 1: 0 if
                        the lists are as popular as what their users chose (Abdollahpouri et al.
                        2020, "The connection between popularity bias, calibration, and fairness in
                        recommendation")
``serendipity@k``       share of the k places that hold a target of the user which is not among the
                        k most popular candidates (useful and unexpected, with popularity as the
                        primitive recommender: Ge et al. 2010)
======================  ==========================================================================

Equally popular items are in index order. An excluded item of a user is no candidate of that user.
"""

from __future__ import annotations

import numpy as np

from hasten.arrays import Int64, ragged_positions
from hasten.data.tables import TRAIN, AnyDataset, Dataset
from hasten.evaluation.popularity import by_popularity, popularity
from hasten.evaluation.protocols import AnyTask, RankingTask
from hasten.evaluation.top_k import top_k
from hasten.models.interface import Model
from hasten.ops.graph.csr import CSR

#: lists whose diversity is measured, and users whose events are held as bits at a time
_LISTS, _USERS = 1_000, 8_192


def recommended_lists(model: Model, task: RankingTask, k: int) -> CSR:
    """The k best candidates of each query, best first.

    Masked items are left out as in the protocol; with sampled candidates, all of the history is.
    """
    hidden = _hidden(task)
    allowed = None if task.subset is None else np.flatnonzero(task.subset)
    query, item, _, _ = top_k(model, task.queries, task.item_count, k, hidden, allowed)
    counts = np.bincount(query, minlength=len(task.queries))
    return CSR(np.concatenate([[0], np.cumsum(counts)]), item)


def _hidden(task: RankingTask) -> CSR | None:
    if task.candidates is not None:
        return CSR.of(task.queries.history).distinct()
    return task.excluded if task.masked else None


def list_figures(model: Model, task: AnyTask, dataset: AnyDataset, k: int) -> dict[str, float]:
    """The figures of a recommender's lists of k items. The model encodes the queries again."""
    assert isinstance(task, RankingTask)
    assert isinstance(dataset, Dataset)
    return beyond_accuracy(recommended_lists(model, task, k), task, dataset, k)


def beyond_accuracy(lists: CSR, task: RankingTask, dataset: Dataset, k: int) -> dict[str, float]:
    """The figures by name (``coverage@10``); NaN where there is nothing to average.

    lists: of the queries of the task (:func:`recommended_lists`).
    """
    counts = popularity(dataset)
    users = int((dataset.histories(TRAIN).lengths > 0).sum())
    catalog = task.item_count if task.subset is None else int(task.subset.sum())
    surprise = -np.log2(np.maximum(counts, 1) / max(users, 1))
    popular = _mean(lists, counts)
    history_popularity = _mean(CSR.of(task.queries.history), counts)
    figures = {
        "coverage": len(np.unique(lists.items)) / catalog,
        "novelty": _mean(lists, surprise),
        "diversity": _diversity(lists, dataset, counts),
        "popularity": popular,
        "popularity_lift": popular / history_popularity - 1 if history_popularity else np.nan,
        "serendipity": _unexpected_hits(lists, task, counts, k) / (k * max(len(lists), 1)),
    }
    return {f"{name}@{k}": float(value) for name, value in figures.items()}


def _mean(rows: CSR, values: np.ndarray) -> float:
    """The mean over rows that are not empty of the mean value of a row's items."""
    sums = np.bincount(rows.rows, weights=values[rows.items], minlength=len(rows))
    filled = rows.lengths > 0
    return float((sums[filled] / rows.lengths[filled]).mean()) if filled.any() else np.nan


def _diversity(lists: CSR, dataset: Dataset, counts: Int64) -> float:
    several = np.flatnonzero(lists.lengths > 1)
    if not len(several):
        return np.nan
    chosen = several[np.linspace(0, len(several) - 1, min(len(several), _LISTS)).astype(np.int64)]
    lists = lists.take(chosen)
    items, place = np.unique(lists.items, return_inverse=True)
    first, second, row = [], [], []
    for number, (begin, end) in enumerate(zip(lists.offsets[:-1], lists.offsets[1:], strict=True)):
        one, other = np.triu_indices(end - begin, 1)
        first.append(place[begin + one])
        second.append(place[begin + other])
        row.append(np.full(len(one), number))
    one, other, of = (np.concatenate(each) for each in (first, second, row))
    pairs, pair = np.unique(
        np.minimum(one, other) * len(items) + np.maximum(one, other), return_inverse=True
    )
    one, other = pairs // len(items), pairs % len(items)
    together = _common_users(items, one, other, dataset)
    scale = np.sqrt(counts[items[one]] * counts[items[other]].astype(np.float64))
    distance = 1 - np.divide(together, scale, out=np.zeros(len(scale)), where=scale > 0)
    sizes = np.bincount(of, minlength=len(lists))
    return float((np.bincount(of, weights=distance[pair]) / sizes).mean())


def _common_users(items: Int64, one: Int64, other: Int64, dataset: Dataset) -> Int64:
    """The numbers of training users that pairs of these items (by position) have in common."""
    chosen = dataset.histories(TRAIN)
    place = np.full(len(dataset.items), -1, np.int64)
    place[items] = np.arange(len(items))
    together = np.zeros(len(one), np.int64)
    bits_of = np.array([number.bit_count() for number in range(256)], np.uint8)
    for start in range(0, len(chosen), _USERS):
        block = CSR.of(chosen).take(np.arange(start, min(start + _USERS, len(chosen))))
        has_item = np.zeros((len(items), _USERS), bool)
        known = place[block.items] >= 0
        has_item[place[block.items[known]], block.rows[known]] = True
        bits = np.packbits(has_item, axis=1)
        for begin in range(0, len(one), _USERS):
            part = slice(begin, begin + _USERS)
            together[part] += bits_of[bits[one[part]] & bits[other[part]]].sum(1, dtype=np.int64)
    return together


def _unexpected_hits(lists: CSR, task: RankingTask, counts: Int64, k: int) -> int:
    """Places of lists with a target that is not among the k most popular candidates."""
    hits = lists.keep(lists.listed_in(task.targets.distinct()))
    if task.subset is not None:
        counts = np.where(task.subset, counts, -1)
    place = np.empty(len(counts), np.int64)
    place[by_popularity(counts)] = np.arange(len(counts))
    above = place[hits.items]
    hidden = _hidden(task)
    if hidden is not None and len(above):
        positions, offsets = ragged_positions(hidden.offsets, hits.rows)
        better = place[hidden.items[positions]] < np.repeat(above, np.diff(offsets))
        above = above - np.bincount(
            np.repeat(np.arange(len(above)), np.diff(offsets)), better, len(above)
        ).astype(np.int64)
    return int((above >= k).sum())

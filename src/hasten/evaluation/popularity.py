"""Popularity of items in the training part, and groups of items by it."""

from __future__ import annotations

import numpy as np

from hasten.arrays import Int64
from hasten.data.tables import TRAIN, Dataset
from hasten.ops.graph.csr import CSR

#: by the code of :func:`popularity_groups`
GROUPS = ("most popular 20 %", "middle 60 %", "least popular 20 %", "not in training")


def popularity(dataset: Dataset) -> Int64:
    """[N] the number of distinct users with a training event of each item."""
    items = CSR.of(dataset.histories(TRAIN)).distinct().items
    return np.bincount(items, minlength=len(dataset.items))


def popularity_groups(counts: Int64) -> Int64:
    """[N] the group of each item, an index of :data:`GROUPS`.

    The first three are shares of the items with training events, not of the events. Items with
    equal counts are in index order.
    """
    order = by_popularity(counts)
    trained = int((counts > 0).sum())
    fifth = np.arange(trained) * 5 // max(trained, 1)
    groups = np.full(len(counts), 3, np.int64)
    groups[order[:trained]] = np.where(fifth == 0, 0, np.where(fifth == 4, 2, 1))
    return groups


def by_popularity(counts: Int64) -> Int64:
    """The items, the most popular first; items with equal counts in index order."""
    return np.argsort(-counts, kind="stable")

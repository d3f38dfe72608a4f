"""The graphs of DRAGON that do not change: items alike by their features, users alike by items."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hasten.arrays import Int64
from hasten.data.modality import Modality
from hasten.models.multimodal.graph_cache import content_hash, kept
from hasten.models.multimodal.modal_data import features_of
from hasten.models.multimodal.nearest import companions, nearest
from hasten.ops.graph.bipartite import Weighted
from hasten.ops.graph.csr import CSR


def item_graph(modalities: Mapping[Modality, float], k: int) -> Weighted:
    """[N, N]: the weighted sum of the modalities' graphs of the k nearest items.

    In a modality's graph an item has itself and the k - 1 most alike, one over their number each.
    modalities: with the weight of each; the same item in several of them is one entry.
    """
    rows, columns, values = [], [], []
    count = 0
    for modality, weight in modalities.items():
        mark = content_hash("nearest 1", modality.digest, str(k))

        def make(modality: Modality = modality) -> dict[str, Int64]:
            return {"nearest": nearest(features_of(modality), k).numpy()}

        near = kept("nearest", mark, make)["nearest"]
        count = len(near)
        row, place = np.nonzero(near >= 0)
        rows.append(row)
        columns.append(near[row, place])
        values.append(weight / np.bincount(row, minlength=count)[row])
    key = np.concatenate(rows) * count + np.concatenate(columns)
    entries, inverse = np.unique(key, return_inverse=True)
    summed = np.bincount(inverse, weights=np.concatenate(values)).astype(np.float64)
    row, column = np.divmod(entries, count)
    return Weighted.of(row, column, summed, (count, count))


def user_graph(pairs: CSR, items: int, k: int) -> Weighted:
    """[U, U]: of each user the k others with the most items in common, by the softmax of how many.

    A user who shares items with fewer has fewer, and one who shares none has none.
    """
    mark = content_hash("companions 2", pairs.offsets, pairs.items, str(items), str(k))

    def make() -> dict[str, Int64]:
        user, other, count = companions(pairs, items, k)
        return {"user": user, "other": other, "count": count}

    found = kept("companions", mark, make)
    user, other, count = found["user"], found["other"], found["count"].astype(np.float64)
    order = np.argsort(user * len(pairs) + other)
    user, other, count = user[order], other[order], count[order]
    most = np.zeros(len(pairs))
    np.maximum.at(most, user, count)
    values = np.exp(count - most[user])
    values /= np.bincount(user, weights=values, minlength=len(pairs))[user]
    return Weighted.of(user, other, values, (len(pairs), len(pairs)))

"""Constant graphs: similar items by features (DRAGON, FREEDOM), similar users by common items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hasten.arrays import Int64
from hasten.data.tables import Modality
from hasten.errors import ConfigurationError
from hasten.models.multimodal.graph_cache import cached_arrays, content_hash
from hasten.models.multimodal.modal_data import features_of
from hasten.models.multimodal.nearest import companions, nearest
from hasten.ops.graph.bipartite import WeightedGraph
from hasten.ops.graph.csr import CSR

#: the default of ``first_weight``: the weight of the first modality
FIRST_WEIGHT = 0.1


def modality_weights(modalities: Sequence[tuple[str, int]], first: float) -> dict[str, float]:
    """The weight of each modality in the graph of similar items.

    first: of the first one; the others share the rest.

    Raises:
        ConfigurationError: ``first_weight`` is not its default, and there is a single modality.
    """
    names = [name for name, _ in modalities]
    if len(names) > 1:
        other_weight = (1 - first) / (len(names) - 1)
        return dict(zip(names, [first] + [other_weight] * (len(names) - 1), strict=True))
    # not whether it was given: a resumed run gives every option
    if first != FIRST_WEIGHT:
        raise ConfigurationError(
            "model.first_weight shares out the items of several modalities; with one it would "
            "have no effect: leave it out"
        )
    return dict.fromkeys(names, 1.0)


def item_graph(modalities: Mapping[Modality, float], k: int) -> WeightedGraph:
    """[N, N]: the weighted sum of the modalities' graphs of the k nearest items.

    In the graph of a modality, an item has edges to itself and to the k - 1 most similar items, of
    equal weights that sum to 1. modalities: with the weight of each.
    """
    rows, columns, values = [], [], []
    count = 0
    for modality, weight in modalities.items():
        digest = content_hash("nearest 1", modality.digest, str(k))

        def make(modality: Modality = modality) -> dict[str, Int64]:
            return {"nearest": nearest(features_of(modality), k).numpy()}

        near = cached_arrays("nearest", digest, make)["nearest"]
        count = len(near)
        row, column = np.nonzero(near >= 0)
        rows.append(row)
        columns.append(near[row, column])
        values.append(weight / np.bincount(row, minlength=count)[row])
    key = np.concatenate(rows) * count + np.concatenate(columns)
    entries, inverse = np.unique(key, return_inverse=True)
    summed = np.bincount(inverse, weights=np.concatenate(values)).astype(np.float64)
    row, column = np.divmod(entries, count)
    return WeightedGraph.of(row, column, summed, (count, count))


def user_graph(pairs: CSR, items: int, k: int) -> WeightedGraph:
    """[U, U]: edges to the k users with the most common items, softmax-weighted by the counts.

    A user who shares items with fewer users has fewer edges, or none.
    """
    digest = content_hash("companions 2", pairs.offsets, pairs.items, str(items), str(k))

    def make() -> dict[str, Int64]:
        user, other, count = companions(pairs, items, k)
        return {"user": user, "other": other, "count": count}

    arrays = cached_arrays("companions", digest, make)
    user, other, count = arrays["user"], arrays["other"], arrays["count"].astype(np.float64)
    order = np.argsort(user * len(pairs) + other)
    user, other, count = user[order], other[order], count[order]
    most = np.zeros(len(pairs))
    np.maximum.at(most, user, count)
    values = np.exp(count - most[user])
    values /= np.bincount(user, weights=values, minlength=len(pairs))[user]
    return WeightedGraph.of(user, other, values, (len(pairs), len(pairs)))

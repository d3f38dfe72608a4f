"""Item-kNN: the most similar items by cosine with shrinkage (Deshpande & Karypis 2004).

The similarity of items i and j is ``g_ij / (sqrt(g_ii g_jj) + shrinkage)`` with ``g = Xᵀ X``. What
users with many items share says less: ``weighting=idf`` multiplies row u of X by ``log(1 + N /
n_u)``, n_u items of N (TF-IDF with users as terms; the lengths of BM25 cancel in the cosine), and
``length`` by ``n_u^-½``. The weights are scaled to a mean of 1, so that ``shrinkage`` counts pairs.
An item keeps its most similar items; the score of an item is the sum of its similarities to those
of them in the history.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from hasten.arrays import Int64, order_by, ragged_offsets
from hasten.config import ModelOptions
from hasten.data.tables import Dataset
from hasten.models.linear.base import SparseItemModel, training_pairs
from hasten.models.linear.cooccurrence import cooccurrences
from hasten.models.search_space import Choice, Range
from hasten.ops.graph.csr import CSR


class ItemKNNOptions(ModelOptions):
    """Options of item-kNN."""

    name: Literal["itemknn"] = "itemknn"
    neighbors: int = Field(100, ge=1, description="most similar items that each item keeps")
    shrinkage: float | None = Field(
        None,
        ge=0,
        description="added to the denominator of the cosine: lowers rare similarities; none: from "
        "the mean length L of the users' histories, 40,000 / L²",
    )
    weighting: Literal["none", "idf", "length"] = Field(
        "length",
        description="weight of users with n items in a similarity: 1, log(1 + N / n)² or 1 / n",
    )


class ItemKNN(SparseItemModel):
    """Cosine similarities of items, sparse."""

    name = "itemknn"
    summary = "most similar items by cosine"
    Options = ItemKNNOptions
    search = {
        "model.neighbors": Choice(20, 50, 100, 200, 400),
        "model.shrinkage": Range(0.1, 1000.0, log=True),
        "model.weighting": Choice("none", "idf", "length"),
    }

    def fit(self, dataset: Dataset) -> None:
        """Compare all items, a block at a time; among equal similarities the lower index wins."""
        pairs, items, options = training_pairs(dataset), self.sizes.items, self.options
        weights = user_weights(pairs, items, options.weighting)
        shrinkage = options.shrinkage
        if shrinkage is None:  # short histories: popularity tells more than similarity
            shrinkage = 40_000 * len(pairs) ** 2 / max(1, len(pairs.items)) ** 2
        norms = np.bincount(pairs.items, weights[pairs.rows], minlength=items) ** 0.5
        blocks: list[tuple[Int64, Int64, NDArray[np.float32]]] = []
        for rows, columns, sums in cooccurrences(pairs, items, weights):
            off_diagonal = rows != columns
            row, other = rows[off_diagonal], columns[off_diagonal]
            divisor = norms[row] * norms[other] + shrinkage
            similarity = (sums[off_diagonal] / divisor).astype(np.float32)
            # numbers above 0 are ordered as their bits; equal ones stay in the order of the items
            bits = similarity.view(np.int32)
            order = order_by(row, bits.max(initial=0) - bits)
            rank = np.arange(len(row)) - ragged_offsets(row, items)[row]
            nearest = order[rank < options.neighbors]
            blocks.append((other[nearest], row[nearest], similarity[nearest]))
        source, target, weight = (np.concatenate(each) for each in zip(*blocks, strict=True))
        self.keep(source, target, torch.from_numpy(weight))


def user_weights(
    pairs: CSR, items: int, weighting: Literal["none", "idf", "length"]
) -> NDArray[np.float64]:
    """[U] the squared weight of each user's row, 1 on average over the pairs."""
    lengths = np.maximum(pairs.lengths, 1)
    if weighting == "none":
        return np.ones(len(pairs))
    weights = 1 / lengths if weighting == "length" else np.log1p(items / lengths) ** 2
    return np.asarray(weights * len(pairs.items) / (weights @ pairs.lengths))

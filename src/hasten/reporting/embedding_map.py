"""A map of the vectors of items or entities: their first two principal components."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import TRAIN, KnowledgeGraph
from hasten.errors import UsageError
from hasten.evaluation.popularity import GROUPS, popularity, popularity_groups
from hasten.inference.vectors import vectors
from hasten.loaded_run import LoadedRun
from hasten.reporting.blocks import Scatter

#: rows that determine the components, and groups with a color of their own
_ROWS, _GROUPS = 20_000, 5


def embedding_map(loaded: LoadedRun, points: int) -> tuple[Scatter | None, str]:
    """The map of at most so many vectors, drawn at random; otherwise None and the reason."""
    try:
        table = vectors(loaded)
    except UsageError:
        return None, f"No map: {loaded.config.model.name} has no vectors of items or entities."
    values = table.vectors
    if len(values) < 3 or not np.isfinite(values).all():
        return None, "No map: too few vectors, or not all of them are finite."
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(len(values), min(len(values), _ROWS), replace=False))
    places, shares = principal_components(values[rows])
    shown = np.sort(rng.choice(len(rows), min(len(rows), points), replace=False))
    places, rows = places[shown], rows[shown]
    group, names = _groups(loaded)
    ids, known = table.ids.take(rows).to_pylist(), table.names.take(rows).to_pylist()
    labels = [str(name or label) for name, label in zip(known, ids, strict=True)]
    groups = []
    for number, name in enumerate(names):
        group_rows = np.flatnonzero(group[rows] == number)
        if len(group_rows):
            chosen = [(float(x), float(y)) for x, y in places[group_rows]]
            groups.append((name, chosen, [labels[i] for i in group_rows]))
    kind = "entities" if isinstance(loaded.dataset, KnowledgeGraph) else "items"
    title = f"{len(shown):,} of {len(values):,} {kind}"
    x, y = (f"component {i + 1}, {share:.0%} of the variance" for i, share in enumerate(shares))
    return Scatter(title, x, y, groups), ""


def principal_components(
    vectors: NDArray[np.float32],
) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """[S, 2] the vectors in their first two principal components, and their variance's shares.

    The component of largest absolute value of each direction is positive.
    """
    centered = vectors - vectors.mean(0, dtype=np.float64)
    variance, directions = np.linalg.eigh(centered.T @ centered)
    directions = directions[:, ::-1][:, :2]
    largest = np.abs(directions).argmax(0)
    directions = directions * np.sign(directions[largest, np.arange(directions.shape[1])])
    places, total = centered @ directions, max(float(variance.sum()), 1e-30)
    shares = np.zeros(2)
    shares[: directions.shape[1]] = np.maximum(variance[::-1][:2], 0) / total
    if places.shape[1] < 2:
        places = np.pad(places, ((0, 0), (0, 1)))
    return places, (float(shares[0]), float(shares[1]))


def _groups(loaded: LoadedRun) -> tuple[Int64, tuple[str, ...]]:
    """[N] groups of items by popularity, of nodes by type, of entities by number of triples."""
    dataset = loaded.dataset
    if not isinstance(dataset, KnowledgeGraph):
        return popularity_groups(popularity(dataset)), GROUPS
    if dataset.typed:
        types = NodeTypes.of(dataset)
        order = np.argsort(-types.sizes, kind="stable")
        place = np.empty(len(types), np.int64)
        place[order] = np.minimum(np.arange(len(types)), _GROUPS)
        names = [types.names[number] for number in order[:_GROUPS]]
        return place[types.code], (*names, "other types")
    triples = dataset.of(TRAIN)
    ends = np.concatenate([triples.head, triples.tail])
    counts = np.bincount(ends, minlength=len(dataset.entities))
    shares = ("20 % with the most triples", "middle 60 %", "20 % with the fewest")
    return popularity_groups(counts), (*shares, "not in training")

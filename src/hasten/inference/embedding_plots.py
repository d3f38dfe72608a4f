"""Plot embeddings: the first principal components and the explained variance."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hasten.atomic_write import atomic_path
from hasten.errors import UsageError

_TYPES_SHOWN = 12


def plot_components(vectors: NDArray[np.float32], kinds: list[str], folder: Path) -> list[Path]:
    """Write pca.png (two components, colored by type) and variance.png; returns their paths.

    vectors: float32 [S, D], the nodes that are drawn; kinds: [S] their types.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("plots need matplotlib: pip install 'hasten[plots]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    centered = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    _, singular, directions = np.linalg.svd(centered, full_matrices=False)
    share = singular**2 / max(float((singular**2).sum()), 1e-30)
    places = centered @ directions[:2].T
    if places.shape[1] < 2:
        places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    scatter = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(scatter)
    axes = scatter.add_subplot()
    code = np.array(kinds, object).astype(str)
    names, count = np.unique(code, return_counts=True)
    shown = names[np.argsort(-count, kind="stable")][:_TYPES_SHOWN]
    for name in shown.tolist():
        is_kind = code == name
        axes.scatter(places[is_kind, 0], places[is_kind, 1], s=6, alpha=0.6, label=name)
    axes.set_xlabel(f"first component, {share[0]:.1%} of the variance")
    axes.set_ylabel(f"second component, {share[1] if len(share) > 1 else 0:.1%}")
    axes.legend(fontsize="small", markerscale=2)
    curve = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(curve)
    axes = curve.add_subplot()
    axes.plot(np.arange(1, len(share) + 1), np.cumsum(share))
    axes.axhline(0.9, linewidth=0.8, linestyle="--")
    axes.set_xlabel("principal components")
    axes.set_ylabel("share of the variance")
    paths = [folder / "pca.png", folder / "variance.png"]
    for figure, path in zip((scatter, curve), paths, strict=True):
        with atomic_path(path) as new:
            figure.savefig(new, dpi=120, format="png")
    return paths

"""Plot the importance of the options of a tuning."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from hasten.atomic_write import atomic_path


def plot_importance(importance: Mapping[str, float], path: Path) -> bool:
    """Write a bar chart as PNG; False without matplotlib or without anything to show."""
    if not importance or find_spec("matplotlib") is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7, 1 + 0.4 * len(importance)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = sorted(importance, key=lambda name: importance[name])
    axes.barh(names, [importance[name] for name in names])
    axes.set_xlabel("importance (share)")
    with atomic_path(path) as new:
        figure.savefig(new, dpi=120, format="png")
    return True

"""The library in one call: train, look at the metrics, recommend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.configuration.build import build_config
from hasten.inference.recommend import Recommendations, recommend
from hasten.run import LoadedRun, load_run
from hasten.run import train as train_run
from hasten.training.summary import Summary

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """A finished run: its metrics, its folder, and what can be done with it."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self._loaded: LoadedRun | None = None

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.summary.run

    @property
    def metrics(self) -> dict[str, float]:
        """Test metrics of the checkpoint selected on validation."""
        return dict(self.summary.test)

    @property
    def valid_metrics(self) -> dict[str, float]:
        """Validation metrics of the same checkpoint."""
        return dict(self.summary.valid)

    @property
    def protocol(self) -> str:
        """How the metrics were made; it belongs to the numbers."""
        return self.summary.protocol

    @property
    def loaded(self) -> LoadedRun:
        """The model (``.model``, in evaluation mode) and its data (``.dataset``)."""
        if self._loaded is None:
            self._loaded = load_run(self.path)
        return self._loaded

    def recommend(
        self, users: Sequence[Any] | None = None, topk: int = 10, **options: Any
    ) -> Recommendations:
        """Top items of users (None: all); options as in :func:`hasten.inference.recommend`."""
        return recommend(self.loaded, users=users, topk=topk, **options)

    def to_frame(self) -> pd.DataFrame:
        """One row a metric: part, metric, value, protocol (needs pandas)."""
        import pandas as pd  # noqa: PLC0415 - optional

        parts = {"valid": self.summary.valid, "test": self.summary.test}
        rows = [
            {"part": part, "metric": name, "value": value, "protocol": self.protocol}
            for part, values in parts.items()
            for name, value in values.items()
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"<hasten run {self.path}: {shown}>"


def train(
    model: str = "sasrec",
    data: object | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
    **flags: Any,
) -> Result:
    """Train a model and return its :class:`Result`.

    data: a path, a registered name, a pandas/polars/Arrow table or a mapping of arrays; None takes
    the built-in sample. settings: dotted configuration keys, ``{"model.width": 128}``; flags: the
    everyday ones by name (``epochs=20, lr=1e-3, device="cpu", out="runs/mine"``).
    Raises hasten.HastenError.
    """
    path = str(data) if isinstance(data, str | Path) else None
    table = None if data is None or path is not None else data
    given = {**(settings or {}), **flags}
    built = build_config(model, path, None if config is None else Path(config), (), given)
    return Result(train_run(built, table=table, quiet=quiet))


def load(run: str | Path, checkpoint: str = "best", device: str = "auto") -> LoadedRun:
    """The model and data of a run folder."""
    return load_run(Path(run), checkpoint=checkpoint, device=device)

"""The result of a tuning: what was selected, how it compares, what mattered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hasten.evaluation.metrics import higher_is_better


@dataclass(frozen=True)
class Tuning:
    """The result of a tuning; ``hasten tune --json`` prints ``to_json()``.

    path: its folder. selected: ``run``, ``valid`` (the metric), ``settings`` (what differs from the
    defaults; empty if the defaults are best), ``epochs``. defaults: the same of the best seed of
    the defaults, with the values of all ``seeds``. trials: every trial. importance: shares of the
    options. seconds: of the search and of the defaults. test: metrics of ``selected`` and
    ``defaults`` on the test part; None while it is sealed. recipe: file for ``hasten train MODEL
    DATA --recipe FILE``.
    """

    path: Path
    model: str
    data: str
    metric: str
    protocol: str
    selected: dict[str, Any]
    defaults: dict[str, Any]
    trials: list[dict[str, Any]]
    importance: dict[str, float]
    seconds: dict[str, float]
    recipe: Path
    test: dict[str, dict[str, float]] | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Tuning:
        """The inverse of :meth:`to_json`."""
        paths = {name: Path(values[name]) for name in ("path", "recipe")}
        return cls(**{**values, **paths})

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "recipe": str(self.recipe)}

    def best(self, count: int) -> list[dict[str, Any]]:
        """The trials with the best validation values, the best first."""
        sign = 1 if higher_is_better(self.metric) else -1
        tried = [trial for trial in self.trials if trial["valid"] is not None]
        return sorted(tried, key=lambda trial: -sign * trial["valid"])[:count]

    def __repr__(self) -> str:
        value, base = self.selected["valid"], self.defaults["valid"]
        return f"<hasten tuning {self.path}: valid {self.metric} {value:.4f}, defaults {base:.4f}>"

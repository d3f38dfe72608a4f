"""The result of a run: metrics and their protocol, time and memory, options in effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Summary:
    """The result of a run; ``hasten train --json`` prints ``to_json()``.

    selected: with --refit, the result of the run that selected the number of epochs. plan: with
    --memory-budget, what was chosen and why, predicted and measured.
    """

    run: Path
    model: str
    data: str
    epochs: int
    valid: dict[str, float]
    test: dict[str, float]
    protocol: str
    seconds: dict[str, float]
    examples_per_second: float
    peak_memory_bytes: int
    effective: dict[str, Any]
    stopped_by: str
    best_epoch: int
    selected: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Summary:
        """The inverse of :meth:`to_json`; non-finite numbers become None."""
        return cls(**{**values, "run": Path(values["run"])})

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "run": str(self.run)}

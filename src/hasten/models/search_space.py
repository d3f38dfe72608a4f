"""Search spaces of ``hasten tune``, declared by each model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds. log: uniform in the logarithm."""

    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{',log' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """A few values: numbers, truth values or texts."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


#: dotted key -> its values. An option that has an effect only together with another one
#: (``OnlyWith``) comes after it, and is searched where that one has the value.
SearchSpace = Mapping[str, Range | Choice]

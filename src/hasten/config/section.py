"""The base class of all configuration sections, and the annotation of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values are checked."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


@dataclass(frozen=True)
class OnlyWith:
    """Mark an option that has an effect only together with another option of its section.

    ``Annotated[float, OnlyWith("schedule", "linear", "cosine")]``: with one of these values;
    without values: if the other option is set.
    """

    option: str
    values: tuple[Any, ...]

    def __init__(self, option: str, *values: Any) -> None:
        object.__setattr__(self, "option", option)
        object.__setattr__(self, "values", values)

    def holds(self, value: Any) -> bool:
        """Whether the marked option has an effect with this value of the other option."""
        return value in self.values if self.values else value is not None

    def __str__(self) -> str:
        return f"{self.option}={'|'.join(map(str, self.values))}" if self.values else self.option

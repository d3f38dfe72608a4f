"""The speed and memory switches that have an effect on a model, to compare one at a time."""

from __future__ import annotations

from typing import Any

from hasten.config import RunConfig
from hasten.errors import UsageError
from hasten.models.supports import Supports
from hasten.registry import load_model

#: steps between two returns of cached memory, often enough to show
_CLEANUP = 50


def speed_switches(config: RunConfig, device: str) -> list[dict[str, Any]]:
    """One alternative for each switch that the model supports and the baseline does not use.

    device: its type, such as ``cuda``. Raises UsageError for a model without gradient steps.
    """
    supports, training = Supports.of(load_model(config.model.name)), config.training
    if not supports.gradient_steps:
        raise UsageError(
            f"--all-switches: {config.model.name} is fitted in one pass and has no speed switches"
        )
    offered: list[tuple[bool, str, Any]] = [
        (supports.precision, "precision", "bf16"),
        (supports.precision and device == "cuda", "precision", "fp16"),
        (supports.compile, "compile", "auto"),
        (supports.recompute, "recompute", True),
        (training.batch_size > 1, "accumulate", 2),
        (True, "cleanup_every", _CLEANUP),
    ]
    return [
        {f"training.{name}": value}
        for possible, name, value in offered
        if possible and getattr(training, name) != value
    ]

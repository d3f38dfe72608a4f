"""The configurations that a comparison trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.build import with_builtin_sample
from hasten.comparison.finished import other_protocol, shown
from hasten.comparison.verdict import Criteria, Part
from hasten.config import RunConfig
from hasten.config_loading.build import EVERYDAY, build_config
from hasten.errors import UsageError
from hasten.models.supports import Supports
from hasten.registry import load_model
from hasten.runs.resuming import all_options

#: steps between two returns of cached memory, often enough to show
_CLEANUP = 50


@dataclass(frozen=True)
class Plan:
    """What is compared, fixed when the comparison begins.

    settings: name -> configuration, the baseline first.
    """

    settings: dict[str, RunConfig]
    criteria: Criteria

    def to_json(self) -> dict[str, Any]:
        """All of it by name, in the form of the file."""
        options = {name: all_options(config) for name, config in self.settings.items()}
        document = {
            "margin": self.criteria.margin.text(),
            "metric": self.criteria.metric,
            "part": self.criteria.part,
            "settings": options,
        }
        return dict(json.loads(json.dumps(document)))


def plan_settings(
    build: Callable[[Mapping[str, Any]], RunConfig],
    baseline: Mapping[str, Any],
    alternatives: Sequence[Mapping[str, Any]],
    part: Part,
) -> dict[str, RunConfig]:
    """The configurations by name.

    build: the configuration with changed options. baseline: changes of all settings; alternatives:
    further changes. The test part stays sealed unless it is compared; all seeds have one split.
    """
    changes = {"baseline": dict(baseline)}
    for each in alternatives:
        name = ", ".join(f"{key}={shown(value)}" for key, value in each.items())
        if name in changes:
            raise UsageError(f"--with {name}: given twice; leave one out")
        changes[name] = {**baseline, **each}
    configs = {name: _prepared(build(setting), part) for name, setting in changes.items()}
    for name, config in configs.items():
        _refuse_incomparable(name, config, configs["baseline"])
    return configs


def _refuse_incomparable(name: str, config: RunConfig, baseline: RunConfig) -> None:
    """Refuse before training what could not be compared after it, or has no effect."""
    for key, remedy in (
        ("seed", "--seeds N trains all settings with the same N seeds"),
        ("out", "--out is the folder of the whole comparison"),
        ("data", "all settings are trained on the same data, as --set gives them"),
    ):
        if getattr(config, key) != getattr(baseline, key):
            raise UsageError(f"--with {name}: {key} cannot be compared: {remedy}")
    if difference := other_protocol(config.evaluation, baseline.evaluation):
        raise UsageError(f"--with {name}: cannot be compared: {difference}")


def _prepared(config: RunConfig, part: Part) -> RunConfig:
    config = with_builtin_sample(config)
    data = config.data
    if data.split_seed is None:
        data = data.model_copy(update={"split_seed": config.seed})
    evaluation = config.evaluation.model_copy(update={"test": part == "test"})
    return config.model_copy(update={"data": data, "evaluation": evaluation})


def merged_flags(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options by full key, so that ``precision`` and ``training.precision`` are the same."""
    return {EVERYDAY.get(name, name): value for name, value in changes.items()}


def configurations(
    model: str, data: str | None, config_file: Path | None, flags: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], RunConfig]:
    """A function that builds the configuration of a run with further changes."""
    common_flags = merged_flags(flags)
    return lambda changes: build_config(
        model, data, config_file, (), {**common_flags, **merged_flags(changes)}
    )


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

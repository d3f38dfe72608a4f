"""``hasten compare``: whether settings are as good as a baseline, and how fast they are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cli import options, output
from hasten.cli.options import EVALUATION, TRAINING, argument, option, switch
from hasten.errors import UsageError

if TYPE_CHECKING:
    from hasten.comparison.result import Comparison


def compare(
    what: list[str] = argument(
        "RUN... | MODEL [DATA]",
        "Finished runs, the baseline first; or a model and data to train on.",
        default=...,
    ),
    alternative: list[str] | None = option(
        "SETTINGS",
        "Train an alternative, such as 'precision=bf16'; repeatable.",
        TRAINING,
        "--with",
    ),
    baseline: str | None = option(
        "SETTINGS",
        "Settings of the baseline (and alternatives), as 'lr=1e-3 compile=off'.",
        TRAINING,
    ),
    all_switches: bool = switch(
        "--all-switches", "Train an alternative for each speed and memory switch.", TRAINING
    ),
    seeds: int | None = option(
        "N", "Seeds of each setting; default: 5, or as many as --budget allows.", TRAINING, min=1
    ),
    budget: str | None = option("TIME", "Train at most this long: 90s, 30m, 2h.", TRAINING),
    config: Path | None = option("FILE", "YAML file with the settings of all runs.", TRAINING),
    recipe: str | None = option("NAME", "Recipe with the settings of all runs.", TRAINING),
    sets: list[str] | None = options.SETS,
    margin: str = option(
        "SIZE", "Largest difference that does not matter: 1% or 0.001.", EVALUATION, default="1%"
    ),
    metric: str | None = option("NAME", "Metric of the verdict; default: the first.", EVALUATION),
    part: str = option(
        "NAME", "Compare this part: valid, or at the end test.", EVALUATION, default="valid"
    ),
    device: str | None = options.DEVICE,
    threads: str | None = options.THREADS,
    out: Path | None = option("DIR", "Folder of the comparison; repeat the command to continue."),
    json: bool = options.JSON,
    quiet: bool = options.QUIET,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Compare settings with a baseline: quality within a margin, speed, memory.

    hasten compare runs/fp32 runs/bf16

    hasten compare sasrec events.csv --with precision=bf16 --with model.loss=bce --budget 1h
    """  # fmt: skip
    options.prepare_process()
    import hasten  # noqa: PLC0415 - brings torch

    training_options: dict[str, Any] = {
        "alternatives": [_settings("--with", text) for text in alternative or ()] or None,
        "baseline": None if baseline is None else _settings("--baseline", baseline),
        "all_switches": all_switches or None,
        "seeds": seeds,
        "budget": budget,
        "config": config,
        "recipe": recipe,
        "settings": dict(_pair("--set", text) for text in sets) if sets else None,
        "threads": threads,
    }
    trains = {name: value for name, value in training_options.items() if value is not None}
    comparison = hasten.compare(
        *what,
        margin=margin,
        metric=metric,
        part=part,
        out=out,
        device=device,
        quiet=quiet,
        **trains,
    )
    if json:
        output.write_json(comparison.to_json())
    else:
        show(comparison)


def _settings(flag: str, text: str) -> dict[str, str]:
    """``"precision=bf16 model.loss=ce"`` as a mapping."""
    settings = dict(_pair(flag, word) for word in shlex.split(text))
    if not settings:
        raise UsageError(f"{flag}: expected settings, such as {flag} precision=bf16")
    return settings


def _pair(flag: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{flag} {text}: expected key=value")
    return key.strip(), value


def show(comparison: Comparison) -> None:
    """Print the table on stdout; the verdicts and what they rest on, on stderr."""
    from hasten.comparison.run import PAGE  # noqa: PLC0415 - brings torch
    from hasten.comparison.wording import about, explain, folders, table  # noqa: PLC0415

    rows = table(comparison)
    output.show_rows(rows, list(rows[0]))
    output.say()
    for each in comparison.alternatives:
        output.say(f"{each.setting.name}: {explain(each, comparison)}")
    for line in (*comparison.notes, *about(comparison), *folders(comparison)):
        output.say(line)
    if comparison.path is not None:
        output.say(f"page        {comparison.path / PAGE}")

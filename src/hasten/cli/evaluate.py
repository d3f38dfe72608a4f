"""``hasten evaluate``: the metrics of a run that exists, by its own protocol or another."""

from __future__ import annotations

from pathlib import Path

import typer

from hasten.cli import output, result
from hasten.cli.options import (
    CheckpointOption,
    DebugOption,
    DeviceOption,
    DevicesOption,
    JsonOption,
    MetricsOption,
    RunArgument,
    SetOption,
    TopkOption,
    given,
    prepare_process,
    start_if_several,
    whole_number,
)


def evaluate(
    context: typer.Context,
    run: RunArgument,
    checkpoint: CheckpointOption = "best",
    metrics: MetricsOption = None,
    topk: TopkOption = None,
    sets: SetOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Evaluate a checkpoint of RUN on its validation and test parts.

    Another protocol: --set evaluation.mask_history=true (or
    evaluation.candidates=uni100). It is printed beside the numbers.
    """
    prepare_process(several=True)
    count = whole_number("devices", devices)
    start_if_several(context, count or 1, count is not None)
    from hasten.configuration.build import parse_changes  # noqa: PLC0415 - only when needed

    configured = _configured_metrics(run) if (metrics is None) != (topk is None) else None
    changes = parse_changes(sets or [], given(metrics=metrics, topk=topk), configured)
    from hasten import run as flow  # noqa: PLC0415 - brings torch

    found = flow.evaluate(run, changes=changes, checkpoint=checkpoint, device=device)
    if json:
        output.write_json(found)
    else:
        output.say(f"{found['model']} on {found['data']}, checkpoint {found['checkpoint']}")
        result.show_metrics(found["valid"], found["test"], found["protocol"])


def _configured_metrics(run: Path) -> tuple[str, ...] | None:
    """The run's own metrics, which a lone --metrics or --topk completes."""
    from hasten.configuration.build import load_config  # noqa: PLC0415 - only when needed

    file = run / "config.yaml"
    return load_config(file).evaluation.metrics if file.is_file() else None

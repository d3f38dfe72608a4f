"""``hasten evaluate``: metrics of an existing run, by its own protocol or another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli import output, result
from hasten.cli.options import (
    CheckpointOption,
    DebugOption,
    DeviceOption,
    DevicesOption,
    JsonOption,
    MetricsOption,
    OutFormatOption,
    RunArgument,
    SetOption,
    TopkOption,
    check_export,
    flag,
    given,
    prepare_process,
    start_if_several,
    whole_number,
)
from hasten.cli.recommend import show_rows
from hasten.errors import UsageError


def evaluate(
    context: typer.Context,
    run: RunArgument,
    checkpoint: CheckpointOption = "best",
    metrics: MetricsOption = None,
    topk: TopkOption = None,
    sets: SetOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    by: Annotated[
        str | None,
        flag("WHAT", "Knowledge graphs: metrics by relation or by direction."),
    ] = None,
    out: Annotated[
        Path | None, flag("FILE", "Write the table of --by to a .parquet, .csv or .json file.")
    ] = None,
    format: OutFormatOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Evaluate a checkpoint of RUN on its validation and test parts.

    Use another protocol with --set evaluation.mask_history=true or
    evaluation.candidates=uni100.
    """
    if by is None and out is not None:
        raise UsageError("--out writes the table of --by: give --by relation or --by direction")
    prepare_process(several=True)
    check_export(out, format)
    count = whole_number("devices", devices)
    start_if_several(context, count or 1, count is not None)
    from hasten.configuration.build import parse_changes  # noqa: PLC0415 - only when needed

    configured = _configured_metrics(run) if (metrics is None) != (topk is None) else None
    changes = parse_changes(sets or [], given(metrics=metrics, topk=topk), configured)
    from hasten import loaded_run  # noqa: PLC0415 - brings torch

    found = loaded_run.evaluate(run, changes=changes, checkpoint=checkpoint, device=device, by=by)
    groups = found.pop("groups", None)
    if groups is not None and out is not None and output.speaks():
        from hasten.inference import export  # noqa: PLC0415 - imports pyarrow

        export.write_table(groups, out, format)
        output.say(f"{groups.num_rows:,} rows in {out}")
    if json:
        rows: dict[str, Any] = {}
        if groups is not None:
            rows = {"groups": groups.to_pylist()} if out is None else {"out": out}
        output.write_json(found | rows)
        return
    output.say(f"{found['model']} on {found['data']}, checkpoint {found['checkpoint']}")
    result.show_metrics(found["valid"], found["test"], found["protocol"])
    if groups is not None and out is None and output.speaks():
        part = "test" if found["test"] else "valid"
        of_part = [row for row in groups.to_pylist() if row["part"] == part]
        show_rows(of_part, groups.column_names)


def _configured_metrics(run: Path) -> tuple[str, ...] | None:
    """The run's metrics, which complete --metrics or --topk where only one is given."""
    from hasten.configuration.build import load_config  # noqa: PLC0415 - only when needed

    file = run / "config.yaml"
    return load_config(file).evaluation.metrics if file.is_file() else None

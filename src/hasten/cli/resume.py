"""``hasten resume``: continue a run in its folder."""

from __future__ import annotations

from pathlib import Path

import typer

from hasten.cli import options, output
from hasten.cli.options import option


def resume(
    context: typer.Context,
    run: Path = options.RUN,
    checkpoint: str | None = option(
        "NAME", "Checkpoint to resume from; default: the newest intact one."
    ),
    out: Path | None = option("DIR", "Resume in a copy of the run in DIR; RUN is not changed."),
    epochs: str | None = option("N", "Maximum number of epochs."),
    patience: str | None = option("N", 'Early stopping: "5 evaluations", "20 epochs" or none.'),
    max_time: str | None = option("TIME", "Stop and save after this time: 90s, 30m, 2h."),
    devices: str | None = options.DEVICES,
    backend: str | None = options.BACKEND,
    master_port: str | None = options.MASTER_PORT,
    sets: list[str] | None = options.SETS,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
    quiet: bool = options.QUIET,
) -> None:
    """Resume RUN from its last checkpoint, as if it had never stopped.

    You can change only options that do not alter the past steps, such as --epochs.

    hasten resume runs/mine --epochs 40
    """
    options.prepare_process(several=True)
    from hasten.config_loading.build import load_config, parse_changes  # noqa: PLC0415 - if needed

    flags = options.configuration_flags(
        epochs=epochs, patience=patience, max_time=max_time, devices=devices, backend=backend,
        master_port=master_port,
    )  # fmt: skip
    changes = parse_changes(sets or [], flags)
    if (run / "config.yaml").is_file():
        saved = load_config(run / "config.yaml")
        options.maybe_start_processes(
            context,
            changes.get("devices", saved.devices),
            devices is not None,
            changes.get("distributed.master_port", saved.distributed.master_port),
        )
    from hasten import run as flow  # noqa: PLC0415 - brings torch

    summary = flow.resume(run, checkpoint=checkpoint, out=out, changes=changes, quiet=quiet)
    if json:
        output.write_json(summary.to_json())
    elif not quiet:
        output.print_summary(summary)

"""``hasten resume``: continue a run in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli import output, result
from hasten.cli.options import (
    BackendOption,
    DebugOption,
    DevicesOption,
    JsonOption,
    MasterPortOption,
    QuietOption,
    RunArgument,
    SetOption,
    flag,
    given,
    prepare_process,
    seconds,
    start_if_several,
)


def resume(
    context: typer.Context,
    run: RunArgument,
    checkpoint: Annotated[
        str | None,
        flag("NAME", "Checkpoint to resume from; default: the newest intact one."),
    ] = None,
    out: Annotated[
        Path | None,
        flag("DIR", "Resume in a copy of the run in DIR; RUN is not changed."),
    ] = None,
    epochs: Annotated[str | None, flag("N", "Maximum number of epochs.")] = None,
    patience: Annotated[
        str | None, flag("N", 'Early stopping: "5 evaluations", "20 epochs" or none.')
    ] = None,
    max_time: Annotated[
        str | None, flag("TIME", "Stop and save after this time: 90s, 30m, 2h.")
    ] = None,
    devices: DevicesOption = None,
    backend: BackendOption = None,
    master_port: MasterPortOption = None,
    sets: SetOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Resume RUN from its last checkpoint, as if it had never stopped.

    You can change only options that do not alter the past steps, such as --epochs.
    """
    prepare_process(several=True)
    from hasten.configuration.build import (  # noqa: PLC0415 - only when needed
        load_config,
        parse_changes,
    )

    flags = given(
        epochs=epochs,
        patience=patience,
        max_time=seconds(max_time),
        devices=devices,
        backend=backend,
        master_port=master_port,
    )
    changes = parse_changes(sets or [], flags)
    if (run / "config.yaml").is_file():
        saved = load_config(run / "config.yaml")
        start_if_several(
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
        result.announce(summary)

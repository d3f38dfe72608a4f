"""``hasten resume``: go on with a run in its own folder."""

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
        typer.Option(metavar="NAME", help="Go on from this one; none: the newest that is whole."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on in a copy of the run here; RUN stays as it is."),
    ] = None,
    epochs: Annotated[str | None, typer.Option(metavar="N", help="Train up to so many.")] = None,
    patience: Annotated[
        str | None, typer.Option(metavar="N", help='"5 evaluations", "20 epochs" or none.')
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop and save after 90s, 30m, 2h.")
    ] = None,
    devices: DevicesOption = None,
    backend: BackendOption = None,
    master_port: MasterPortOption = None,
    sets: SetOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Go on with RUN from its last checkpoint, as if it had never stopped.

    Only what does not alter the work done so far may change, such as --epochs.
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

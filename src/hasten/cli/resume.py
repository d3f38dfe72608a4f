"""``hasten resume``: go on with a run in its own folder."""

from __future__ import annotations

from typing import Annotated

import typer

from hasten.cli import output, result
from hasten.cli.options import (
    DebugOption,
    JsonOption,
    QuietOption,
    RunArgument,
    SetOption,
    given,
    prepare_process,
    seconds,
)


def resume(
    run: RunArgument,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Go on from this one; none: the newest that is whole."),
    ] = None,
    epochs: Annotated[str | None, typer.Option(metavar="N", help="Train up to so many.")] = None,
    patience: Annotated[
        str | None, typer.Option(metavar="N", help='"5 evaluations", "20 epochs" or none.')
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop and save after 90s, 30m, 2h.")
    ] = None,
    sets: SetOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Go on with RUN from its last checkpoint, as if it had never stopped.

    Only what does not alter the work done so far may change, such as --epochs.
    """
    prepare_process()
    from hasten.configuration.build import parse_changes  # noqa: PLC0415 - only when needed

    flags = given(epochs=epochs, patience=patience, max_time=seconds(max_time))
    changes = parse_changes(sets or [], flags)
    from hasten import run as flow  # noqa: PLC0415 - brings torch

    summary = flow.resume(run, checkpoint=checkpoint, changes=changes, quiet=quiet)
    if json:
        output.write_json(summary.to_json())
    elif not quiet:
        result.announce(summary)

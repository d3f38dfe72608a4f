"""``hasten update``: continue training a run on new data, in a new run folder."""

from __future__ import annotations

from pathlib import Path

from hasten.cli import options, output
from hasten.cli.options import EVALUATION, TRAINING, argument, option, switch


def update(
    run: Path = options.RUN,
    new: str = argument(
        "NEW", "The new data, or all data again: file, folder or registered name.", default=...
    ),
    out: Path | None = option("DIR", "New run folder; default: runs/<date>-<model>-<data>-<n>."),
    sets: list[str] | None = options.SETS,
    format: str | None = options.FORMAT,
    epochs: str | None = option("N", "Epochs; default: a fifth of those of the run.", TRAINING),
    lr: str | None = option("X", "Learning rate; default: that of the run.", TRAINING),
    replay: float | None = option(
        "SHARE", "Share of the users without new events to train on; default: 1, all.", TRAINING
    ),
    check: bool = switch(
        "--check", "Fail if the validation metric falls by more than the margin.", EVALUATION
    ),
    margin: str = option(
        "SIZE", "Margin of --check: 1% of the metric, or 0.001.", EVALUATION, default="1%"
    ),
    device: str | None = options.DEVICE,
    threads: str | None = options.THREADS,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
    quiet: bool = options.QUIET,
) -> None:
    """Train RUN further on its data and NEW, in a new run folder; RUN stays as it is.

    New users, items, entities, relations and node types get rows of their own.

    hasten update runs/mine today.csv --epochs 2 --check
    """
    flags = options.configuration_flags(
        epochs=epochs, lr=lr, device=device, threads=threads, format=format
    )
    options.prepare_process()
    from hasten.updating.update import update_run  # noqa: PLC0415 - brings torch

    updated = update_run(
        run, new, out=out, replay=replay, check=check, margin=margin, sets=sets or [], flags=flags,
        quiet=quiet,
    )  # fmt: skip
    if json:
        output.write_json({**updated.summary.to_json(), "update": updated.about})
    elif not quiet:
        new_ids = {key: value for key, value in updated.about.items() if key.startswith("new_")}
        counts = (f"{count:,} {key.replace('_', ' ')}" for key, count in new_ids.items() if count)
        output.say(f"update of   {run}: {', '.join(counts)}")
        output.print_summary(updated.summary)
        if updated.check is not None:
            output.say(f"check       {updated.check.text()}")

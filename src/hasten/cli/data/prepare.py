"""``hasten data prepare``: convert files of events to a memory-mapped store for training."""

from __future__ import annotations

import time
from pathlib import Path

from hasten.cli import options, output
from hasten.cli.options import argument, option, switch
from hasten.errors import UsageError


def prepare(
    path: str | None = argument("FILE", "A file, a folder or a pattern."),
    out: Path = option("STORE", "The folder to write.", default=...),
    format: str | None = options.FORMAT,
    sets: list[str] | None = options.SETS,
    overwrite: bool = switch("--overwrite", "Replace a store that exists."),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Write events to a store of sequences on disk, in bounded memory; train from it at once.

    hasten data prepare events.csv --out events.store
    """
    from rich import console as terminal  # noqa: PLC0415 - slow to import
    from rich import progress as rich  # noqa: PLC0415

    from hasten.config import InteractionOptions  # noqa: PLC0415 - brings pydantic
    from hasten.config_loading.build import data_options  # noqa: PLC0415
    from hasten.data.detect import narrowed  # noqa: PLC0415 - slow to import
    from hasten.data.event_store.prepare import prepare as write  # noqa: PLC0415

    section = data_options(path, format, sets or [])
    if section.path is None and section.train is None:
        raise UsageError("no data are named: give FILE, or --set data.train=FILE")
    started = time.perf_counter()
    columns = (
        "{task.description}",
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
    )
    console = terminal.Console(stderr=True)
    with rich.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, rich.TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        store = write(narrowed(section, InteractionOptions), out, overwrite, report)
    seconds = time.perf_counter() - started
    counts = store.counts
    for note in store.notes:
        output.say(f"note: {note}")
    said = ", ".join(f"{counts[name]:,} {name}" for name in ("users", "items", "interactions"))
    rate = counts["read"] / seconds
    output.say(f"{out}: {said}; {seconds:.1f} s, {rate:,.0f} events/s")
    output.say(f"next: hasten train sasrec {out}")
    if json:
        output.write_json(
            {"store": str(out), "fingerprint": store.fingerprint, "counts": counts}
            | {"notes": store.notes, "seconds": seconds, "events_per_second": rate}
        )

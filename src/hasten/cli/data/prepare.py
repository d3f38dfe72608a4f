"""``hasten data prepare``: convert files of events or typed edges to a memory-mapped store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli import options, output
from hasten.cli.options import argument, option, switch
from hasten.errors import UsageError

if TYPE_CHECKING:
    from hasten.data.store_folder.manifest import Manifest


def prepare(
    path: str | None = argument("FILE", "A file, a folder or a pattern."),
    out: Path = option("STORE", "The folder to write.", default=...),
    format: str | None = options.FORMAT,
    sets: list[str] | None = options.SETS,
    overwrite: bool = switch("--overwrite", "Replace a store that exists."),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Write events or typed edges to a store on disk, in bounded memory; train from it at once.

    hasten data prepare events.csv --out events.store
    """
    from rich import console as terminal  # noqa: PLC0415 - slow to import
    from rich import progress as rich  # noqa: PLC0415

    from hasten.config import InteractionOptions, TypedGraphOptions  # noqa: PLC0415 - brings pydantic
    from hasten.config_loading.build import data_options  # noqa: PLC0415
    from hasten.data.detect import narrowed  # noqa: PLC0415 - slow to import
    from hasten.data.event_store.prepare import prepare as prepare_events  # noqa: PLC0415
    from hasten.data.graph.files import holds_typed  # noqa: PLC0415
    from hasten.data.graph_store.prepare import prepare_graph  # noqa: PLC0415

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

        store: Manifest
        typed = holds_typed(section)
        if typed:
            store = prepare_graph(narrowed(section, TypedGraphOptions), out, overwrite, report)
        else:
            store = prepare_events(narrowed(section, InteractionOptions), out, overwrite, report)
    seconds = time.perf_counter() - started
    counts = store.counts
    for note in store.notes:
        output.say(f"note: {note}")
    names = ("entities", "relations", "triples") if typed else ("users", "items", "interactions")
    said = ", ".join(f"{counts[name]:,} {name}" for name in names)
    rate, noun = counts["read"] / seconds, "edges" if typed else "events"
    output.say(f"{out}: {said}; {seconds:.1f} s, {rate:,.0f} {noun}/s")
    model = "hgt" if typed else "sasrec"
    mode = " --set model.mode=neighbors" if typed else ""
    output.say(f"next: hasten train {model} {out}{mode}")
    if json:
        output.write_json(
            {"store": str(out), "fingerprint": store.fingerprint, "counts": counts}
            | {"notes": store.notes, "seconds": seconds, f"{noun}_per_second": rate}
        )

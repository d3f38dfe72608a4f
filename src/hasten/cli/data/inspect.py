"""``hasten data``: list, inspect, check and fetch data sets."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hasten.cli import options, output
from hasten.cli.options import argument, option, switch
from hasten.errors import UsageError

if TYPE_CHECKING:
    from hasten.config import AnyDataOptions, RunConfig
    from hasten.data.tables import AnyDataset

app = typer.Typer(help="List, inspect, check, fetch and make data sets.")

#: the model suggested as the next step, by the kind of data
FIRST_MODEL = {
    "interactions": "sasrec",
    "triples": "conve",
    "typed": "hgt",
    "facts": "kgat",
    "features": "mmgcn",
}
READINGS = {
    "interactions": "interactions",
    "facts": "interactions with a knowledge graph",
    "features": "interactions with item features",
    "triples": "triples",
    "typed": "a typed graph",
}

_PATH = argument("PATH", "A file, a folder or a registered name.")
_MODEL = option("NAME", "Read the data as this model does; default: by content.")


def _load(
    path: str | None, form: str | None, sets: list[str] | None, model: str | None
) -> tuple[AnyDataOptions, AnyDataset, RunConfig | None]:
    """The options and the data, for a model with its configuration, or by the kind of content."""
    from hasten.config import AnyDataOptions  # noqa: PLC0415 - brings pydantic
    from hasten.config_loading.build import build_config, data_options  # noqa: PLC0415
    from hasten.data.detect import load_any  # noqa: PLC0415 - slow to import

    config = None
    if model is None:
        data_section = data_options(path, form, sets or [])
    else:
        flags = {} if form is None else {"format": form}
        config = build_config(model, path, sets=sets or [], flags=flags)
        data_section = AnyDataOptions.model_validate(config.data.model_dump(exclude_defaults=True))
    if data_section.path is None and data_section.train is None:
        raise UsageError("no data are named: give PATH, or --set data.train=FILE ...")
    if config is None:
        return data_section, load_any(data_section, 0), None
    from hasten.build import load_data  # noqa: PLC0415 - brings torch

    return data_section, load_data(config, None), config


@app.command("list", cls=options.Command)
def list_sets(json: bool = options.JSON, debug: bool = options.DEBUG) -> None:  # noqa: ARG001
    """List registered data sets and supported formats.

    hasten data list
    """
    from hasten.data.readers import READERS, triples, typed  # noqa: PLC0415
    from hasten.data.sources.catalog import CATALOG, Fetched  # noqa: PLC0415 - slow to import
    from hasten.data.sources.fetch import cached  # noqa: PLC0415

    sets: list[dict[str, Any]] = []
    for entry in CATALOG.values():
        entry_row: dict[str, Any] = {"name": entry.name, "summary": entry.summary}
        if isinstance(entry, Fetched):
            entry_row |= {
                "kind": "fetched",
                "cached": cached(entry.name, entry.sha256) is not None,
                **{key: getattr(entry, key) for key in ("url", "sha256", "bytes", "licence")},
            }
        else:
            entry_row |= {"kind": "built-in sample"}
        sets.append(entry_row)
    formats = [{"name": r.name, "summary": r.summary} for r in READERS.values()]
    formats.append({"name": triples.NAME, "summary": triples.SUMMARY})
    formats += [{"name": name, "summary": said} for name, said in typed.FORMATS.items()]
    output.say("Data sets, by name:")
    for entry_row in sets:
        output.say(f"  {entry_row['name']:<12} {entry_row['summary']}")
        if entry_row["kind"] == "fetched":
            state = (
                "in the cache" if entry_row["cached"] else f"hasten data fetch {entry_row['name']}"
            )
            output.say(f"  {'':<12} {state}; {entry_row['licence']}")
    output.say("Formats, for --format:")
    for form in formats:
        output.say(f"  {form['name']:<12} {form['summary']}")
    if json:
        output.write_json({"datasets": sets, "formats": formats})


@app.command(cls=options.Command)
def inspect(
    path: str | None = _PATH,
    format: str | None = options.FORMAT,
    sets: list[str] | None = options.SETS,
    model: str | None = _MODEL,
    write: Path | None = option("FILE", "Write the configuration to a YAML file."),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Detect format, columns and separator; show statistics and the options to use.

    hasten data inspect events.csv

    hasten data inspect odd.csv --set data.columns.user=client --write data.yaml
    """
    if write is not None and write.exists():
        raise UsageError(f"{write} exists already")
    from hasten.data.overview import inspect as look  # noqa: PLC0415 - slow to import

    data, dataset, config = _load(path, format, sets, model)
    overview = look(data, dataset)
    for file in overview.files:
        _show_file(file)
    if len(overview.readings) > 1:
        output.say("Models that can read these data (--model NAME shows the data of a model):")
        for kind in overview.readings:
            output.say(f"  {READINGS[kind]}: {FIRST_MODEL[kind]}")
    _show_counts(overview.counts, overview.notes, overview.split)
    for title, quantiles in overview.spread.items():
        output.say(f"{title}: " + ", ".join(f"{q} {n:,}" for q, n in quantiles.items()))
    if overview.ratings is not None:
        output.say("ratings: " + ", ".join(f"{k} {v:.4g}" for k, v in overview.ratings.items()))
    if overview.times is not None:
        output.say(f"times: {overview.times['first']} to {overview.times['last']}")
    defaults: dict[str, Any] = {}
    if config is not None:
        from hasten.config_loading.data_defaults import data_defaults, describe_defaults  # noqa: PLC0415

        defaults = data_defaults(config, dataset)
        if defaults:
            output.say(f"Defaults of {model}: {describe_defaults(defaults, dataset)}")
    if overview.settings:
        output.say("Explicit options for the same result:")
        output.say(
            f"  hasten train {model or 'MODEL'} "
            + " ".join(_quoted(overview.settings, overview.options))
        )
    if write is not None:
        import yaml  # noqa: PLC0415 - only where it is needed

        text = yaml.safe_dump({"data": overview.settings}, sort_keys=False, allow_unicode=True)
        write.write_text(text, encoding="utf-8")
        output.say(f"written: {write} (hasten train MODEL --config {write})")
    if json:
        output.write_json(overview.to_json() | {"defaults": defaults})


def _quoted(settings: Mapping[str, Any], flags: list[str]) -> list[str]:
    said = [shlex.quote(str(settings["path"]))] if "path" in settings else []
    pairs = (text.split(" ", 1) for text in flags)
    return said + [f"{flag} {shlex.quote(value)}" for flag, value in pairs]


def _show_file(file: Mapping[str, Any]) -> None:
    part = f" ({file['part']})" if file["part"] else ""
    output.say(f"{file['file']}{part}")
    output.say(f"  format {file['format']}: {file['reason']}")
    if "separator" in file:
        output.say(f"  separator {file['separator']!r}")
    if "columns" in file:
        output.say("  columns " + ", ".join(f"{r} = {n}" for r, n in file["columns"].items()))
    for line in file["first_lines"]:
        output.say(f"  | {line}")


def _show_counts(counts: Mapping[str, Any], notes: list[str], split: str) -> None:
    output.say(", ".join(f"{n:,} {k}" for k, n in counts.items() if k in _SAID and n is not None))
    output.say(f"split: {split}")
    for note in notes:
        output.say(f"note: {note}")


#: pairs of relations that --deep prints
_PAIRS = 10
_SAID = (
    "users", "items", "interactions", "entities", "relations", "triples", "train", "valid", "test",
)  # fmt: skip


@app.command(cls=options.Command)
def check(
    path: str | None = _PATH,
    format: str | None = options.FORMAT,
    sets: list[str] | None = options.SETS,
    model: str | None = _MODEL,
    deep: bool = switch("--deep", "Count ties in time, repeats and leaks of valid and test."),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Read and validate the data; of a store, verify its files. The exit code is 2 on failure.

    hasten data check events.csv --deep
    """
    from hasten.data.mapped_datasets import MAPPED  # noqa: PLC0415
    from hasten.data.store import describe_data  # noqa: PLC0415 - slow to import
    from hasten.data.store_folder.manifest import verify  # noqa: PLC0415

    started = time.perf_counter()
    _, dataset, _ = _load(path, format, sets, model)
    if isinstance(dataset, MAPPED):
        verify(dataset.folder, dataset.manifest)
    seconds = time.perf_counter() - started
    description = describe_data(dataset)
    counts = description["counts"]
    _show_counts(counts, description["notes"], dataset.split)
    noun = "triples" if "triples" in counts else "events"
    output.say(f"ok: {counts['read']:,} {noun} checked in {seconds:.1f} s")
    if deep:
        from hasten.data.audit import report  # noqa: PLC0415 - slow to import

        description |= report(dataset)
        if not json:
            _show_audit(description)
    if json:
        output.write_json({"ok": True, **description, "seconds": seconds})


def _show_audit(audit: Mapping[str, Any]) -> None:
    """Print the tables of --deep, and what to do about the findings."""
    output.show_rows(audit["audit"], ("part", "finding", "affected", "of", "share"))
    used = (row for row in audit["relation_pairs"] if row["valid"] or row["test"])
    if pairs := [row for row in used if row["implies"]]:
        sys.stdout.write("\n")
        output.show_rows(pairs[:_PAIRS], list(pairs[0])[:-1])
        if len(pairs) > _PAIRS:
            output.say(f"({len(pairs) - _PAIRS:,} more pairs of relations with --json)")
    for name, remedy in audit["remedies"].items():
        output.say(f"{name}: {remedy}")


@app.command(cls=options.Command)
def fetch(
    name: str = argument("NAME", "A registered name, or a URL.", default=...),
    sha256: str | None = option("HEX", "Checksum; required for a URL."),
    cache: Path | None = option("DIR", "Cache folder; default: HASTEN_CACHE or ~/.cache/hasten."),
    offline: bool = switch("--offline", "Use only the cache."),
    max_bytes: int | None = option("N", "Maximum size of the download (4 GiB).", min=1),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Download a data set into the cache over https and verify its sha256.

    hasten data fetch ml-100k
    """
    from rich import console as terminal  # noqa: PLC0415 - slow to import
    from rich import progress as rich  # noqa: PLC0415

    from hasten.data.sources.catalog import CATALOG, Fetched  # noqa: PLC0415
    from hasten.data.sources.fetch import DEFAULT_CAP  # noqa: PLC0415
    from hasten.data.sources.fetch import fetch as download  # noqa: PLC0415

    entry = CATALOG.get(name)
    if isinstance(entry, Fetched):
        output.say(f"{entry.summary}\n{entry.licence}")
    columns = (rich.BarColumn(), rich.DownloadColumn(), rich.TimeRemainingColumn())
    console = terminal.Console(stderr=True)
    with rich.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("download", total=None)
        folder = download(
            name,
            sha256=sha256,
            cache=cache,
            offline=True if offline else None,
            cap=DEFAULT_CAP if max_bytes is None else max_bytes,
            report=lambda done, total: bar.update(task, completed=done, total=total),
        )
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    output.say(f"in {folder}: {len(files)} files")
    if isinstance(entry, Fetched):
        output.say(f"next: hasten train {FIRST_MODEL[entry.kind]} {name}")
    else:
        output.say(f"next: hasten data inspect {folder}")
    if json:
        output.write_json(
            {
                "name": name,
                "folder": str(folder),
                "files": [{"file": str(p), "bytes": p.stat().st_size} for p in files],
            }
        )

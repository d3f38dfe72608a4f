"""Report sections on settings and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.reporting.analysis import Analysis, Part
from hasten.reporting.blocks import (
    Block,
    Cell,
    Details,
    Facts,
    Section,
    Table,
    Text,
    duration,
    shown,
    size,
)
from hasten.reporting.stored import StoredRun
from hasten.runs.resuming import all_options

Runs = Sequence[StoredRun]
Names = Sequence[str]
#: settings that say where a run is, not what it is
_PLACES = ("out", "data.", "distributed.")


def summary_section(runs: Runs, names: Names) -> Section:
    """The most important figures, and how each run ended."""
    blocks: list[Block] = []
    if len(runs) == 1:
        blocks.append(Facts(_figures(runs[0]), large=True))
        blocks += [Text(f"{line[:1].upper()}{line[1:]}") for line in runs[0].status]
    else:
        columns = ("run", "model", "seed", "epochs", *_first_metrics(runs), "time", "peak memory")
        rows = [_row(run, name, runs) for run, name in zip(runs, names, strict=True)]
        blocks.append(Table(columns, rows))
        blocks += [
            Text(f"{name}: {'; '.join(run.status)}", soft=True)
            for run, name in zip(runs, names, strict=True)
        ]
    return Section("Summary", blocks)


def _figures(run: StoredRun) -> list[tuple[str, str]]:
    metric, summary = run.metric, run.summary
    rows = [(f"{metric}, validation", shown(run.valid.get(metric)))]
    rows.append((f"{metric}, test", shown(run.test[metric]) if run.test else "sealed"))
    rows.append(("epochs (best)", f"{run.epochs} ({run.best_epoch or '-'})"))
    if summary is not None:
        rows.append(("training time", duration(summary.seconds["train"])))
        if summary.examples_per_second:
            rows.append(("examples a second", f"{summary.examples_per_second:,.0f}"))
        rows.append(("peak memory", size(summary.peak_memory_bytes)))
    return rows


def _first_metrics(runs: Runs) -> tuple[str, ...]:
    """The columns of the metric that selects the checkpoint of the first run."""
    metric = runs[0].metric
    tested = any(run.test for run in runs)
    return (f"{metric}, validation", f"{metric}, test") if tested else (f"{metric}, validation",)


def _row(run: StoredRun, name: str, runs: Runs) -> tuple[Cell, ...]:
    metric, summary = runs[0].metric, run.summary
    test: list[Cell] = [run.test.get(metric, "sealed")] if any(r.test for r in runs) else []
    spent = "-" if summary is None else duration(summary.seconds["train"])
    memory = "-" if summary is None else size(summary.peak_memory_bytes)
    head: tuple[Cell, ...] = (name, run.model, str(run.config.seed), run.epochs)
    return (*head, run.valid.get(metric), *test, spent, memory)


def data_section(runs: Runs, names: Names) -> Section:
    """What was run: the data, the machine, the versions, and the folder."""
    blocks: list[Block] = []
    seen: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        seen.setdefault(str(run.data.get("fingerprint")), []).append(name)
    for fingerprint, of in seen.items():
        run = runs[list(names).index(of[0])]
        if len(seen) > 1:
            blocks.append(Text(f"Data of {', '.join(of)}:"))
        counts = {k: v for k, v in run.data.get("counts", {}).items() if isinstance(v, int) and v}
        facts = [("data", str(run.data.get("name"))), ("split", str(run.data.get("split")))]
        facts += [(key.replace("_", " "), f"{value:,}") for key, value in counts.items()]
        facts.append(("fingerprint", fingerprint[:16]))
        blocks.append(Facts(facts))
        notes = [str(note) for note in run.data.get("notes", [])]
        blocks += [Text(f"{note[:1].upper()}{note[1:]}.", soft=True) for note in notes]
    machines = {_machine(run): None for run in runs}
    blocks += [Text(f"Trained on {machine}.", soft=True) for machine in machines]
    return Section("Data and machine", blocks)


def _machine(run: StoredRun) -> str:
    environment = run.environment
    cpu, versions = environment.get("cpu") or {}, environment.get("versions") or {}
    devices = [str(each.get("name")) for each in environment.get("devices") or []]
    parts = [*devices, f"{cpu.get('model')}, {cpu.get('usable')} cores"]
    parts += [f"{name} {version}" for name, version in versions.items()]
    commit = (environment.get("commits") or {}).get("hasten")
    return ", ".join([*parts, f"commit {commit[:12]}"] if commit else parts)


def metrics_section(runs: Runs, names: Names, analyses: Sequence[Analysis]) -> Section:
    """All metrics with their protocol; those of another treatment of the history are folded."""
    blocks: list[Block] = []
    shown_parts: list[tuple[Part, Sequence[Mapping[str, Any]]]] = [
        ("valid", [run.valid for run in runs]),
        ("test", [run.test for run in runs]),
    ]
    by_metric: dict[str, list[Cell]] = {}
    columns: list[str] = ["metric"]
    other: dict[str, list[Cell]] = {}
    for part, values in shown_parts:
        if not any(values):
            continue
        word = "validation" if part == "valid" else "test"
        columns += [word if len(runs) == 1 else f"{name}, {word}" for name in names]
        for metric in dict.fromkeys(key for each in values for key in each):
            row = (other if "/" in metric else by_metric).setdefault(metric, [])
            row += [None] * (len(columns) - 1 - len(runs) - len(row))
            row += [each.get(metric) for each in values]
    for row in (*by_metric.values(), *other.values()):
        row.extend([None] * (len(columns) - 1 - len(row)))
    if by_metric:
        blocks.append(Table(columns, [(name, *row) for name, row in by_metric.items()]))
    else:
        blocks.append(Text("No validation metrics have been recorded."))
    if not all(run.test for run in runs):
        which = "" if len(runs) == 1 else " of some of these runs"
        blocks.append(
            Text(f"The test part{which} is sealed: it has not been evaluated.", soft=True)
        )
    protocols = {run.summary.protocol for run in runs if run.summary is not None}
    protocols = protocols or {each.protocol for each in analyses if each.protocol}
    blocks += [Text(f"Protocol: {protocol}.", soft=True) for protocol in sorted(protocols)]
    if other:
        table = Table(columns, [(name, *row) for name, row in other.items()])
        blocks.append(Details("With the other treatment of the history", [table]))
    return Section("Metrics", blocks)


def settings_section(runs: Runs, names: Names) -> Section:
    """The switches as they were in effect, and all options."""
    blocks: list[Block] = []
    effective = [{} if run.summary is None else _flat(run.summary.effective) for run in runs]
    keys = list(dict.fromkeys(key for each in effective for key in each))
    if keys and len(runs) == 1:
        blocks.append(Facts([(key.replace("_", " "), _option(effective[0][key])) for key in keys]))
    elif keys:
        rows = [(key, *(_option(each.get(key)) for each in effective)) for key in keys]
        different = [i for i, row in enumerate(rows) if len(set(row[1:])) > 1]
        blocks.append(Table(("switch", *names), rows, marked=different))
    else:
        blocks.append(Text("They are recorded when a run ends."))
    options = [all_options(run.config) for run in runs]
    every = [key for key in dict.fromkeys(k for each in options for k in each)
             if not key.startswith(_PLACES)]  # fmt: skip
    rows = [(key, *(_option(each.get(key)) for each in options)) for key in every]
    different = [i for i, row in enumerate(rows) if len(set(row[1:])) > 1]
    columns = ("option", *(("value",) if len(runs) == 1 else names))
    blocks.append(Details("All options", [Table(columns, rows, marked=different)]))
    return Section("Switches in effect", blocks)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _option(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(_option, value)) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_option(each)}" for key, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)

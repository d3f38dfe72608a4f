"""Report sections on training: curves, time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.reporting.analysis import Analysis
from hasten.reporting.blocks import (
    Details,
    Facts,
    Grid,
    Lines,
    Section,
    Series,
    Table,
    Text,
    size,
)
from hasten.reporting.overview import Names, Runs
from hasten.runs.summary import Summary

#: records of a training epoch that are not losses
_SPEED = ("lr", "seconds", "examples_per_second")
#: curves of metrics that are shown at once
_METRICS = 3


def curves_section(runs: Runs, names: Names) -> Section:
    """Losses and validation metrics by epoch; diagnostics and learning rate are folded."""
    first, *_ = runs
    metrics = dict.fromkeys([first.metric, *first.config.evaluation.metrics])
    losses = dict.fromkeys(
        name for run in runs for name in run.curves("train") if name not in _SPEED
    )
    charts = [chart for name in losses if (chart := _chart(runs, names, "train", name))]
    mark = None
    if len(runs) == 1 and first.best_epoch:
        mark = (float(first.best_epoch), "best")
    ranked = [chart for name in metrics if (chart := _chart(runs, names, "valid", name, mark))]
    charts += ranked[:_METRICS]
    if not charts:
        return Section("Curves", [Text("Nothing was recorded by epoch.", soft=True)])
    lr = ranked[_METRICS:]
    lr += [chart for name in _SPEED if (chart := _chart(runs, names, "train", name))]
    diagnostics = dict.fromkeys(name for run in runs for name in run.curves("health"))
    lr += [chart for name in diagnostics if (chart := _chart(runs, names, "health", name))]
    folded = Details("Other metrics, learning rate, speed and diagnostics", [Grid(lr)])
    return Section("Curves", [Grid(charts), folded])


def _chart(
    runs: Runs, names: Names, kind: str, name: str, mark: tuple[float, str] | None = None
) -> Lines | None:
    series = [
        Series(of, points, number)
        for number, (run, of) in enumerate(zip(runs, names, strict=True))
        if (points := run.curves(kind).get(name))
    ]
    words = {"valid": f"{name}, validation", "train": name, "health": f"embeddings: {name}"}
    known = {"lr": "learning rate", "examples_per_second": "examples a second",
             "seconds": "seconds an epoch"}  # fmt: skip
    title = known.get(name, words[kind]).replace("_", " ")
    return Lines(title, "epoch", series, mark) if series else None


def cost_section(runs: Runs, names: Names, analyses: Sequence[Analysis]) -> Section:
    """Time and memory, by part where they were measured."""
    facts: list[tuple[str, str]] = []
    spent, weights = [], []
    for run, name, each in zip(runs, names, analyses, strict=True):
        of = f", {name}" if len(runs) > 1 else ""
        spent.append({} if run.summary is None else _seconds(run.summary))
        weights.append({module: count for module, count, _ in each.weights})
        if run.summary is not None:
            facts.append((f"peak memory{of}", size(run.summary.peak_memory_bytes)))
            facts += [(f"{key}{of}", text) for key, text in _planned(run.summary.plan or {})]
        if each.weights:
            facts.append((f"weights{of}", size(sum(bytes_ for _, _, bytes_ in each.weights))))
        if energy := run.record.get("energy"):
            facts.append((f"energy of the processors{of}", f"{energy['joules']:,.0f} J"))
    tables = [
        _by_part("Seconds by part", "part", spent, names),
        _by_part("Parameters by module", "module", weights, names),
    ]
    nonempty = [table for table in tables if table.rows]
    if not facts and not nonempty:
        return Section("Time and memory", [Text("They are recorded when a run ends.")])
    return Section("Time and memory", [Facts(facts), Grid(nonempty)])


def _seconds(summary: Summary) -> dict[str, float]:
    parts = {"training": summary.seconds["train"]}
    if "evaluate" in summary.seconds:
        parts["evaluation"] = summary.seconds["evaluate"]
    parts["start, data and saving"] = max(0.0, summary.seconds["total"] - sum(parts.values()))
    return parts


def _planned(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ``--memory-budget`` predicted and measured."""
    return [
        (f"plan: {key.removesuffix('_bytes').replace('_', ' ')}",
         str(value) if isinstance(value, str) or not key.endswith("_bytes") else size(value))
        for key, value in plan.items() if isinstance(value, int | float | str)
    ]  # fmt: skip


def _by_part(title: str, what: str, by_run: Sequence[Mapping[str, float]], names: Names) -> Table:
    """A column of values for each run, and of a single run the shares."""
    parts = dict.fromkeys(part for each in by_run for part in each)
    if len(by_run) > 1:
        rows = [(part, *(each.get(part) for each in by_run)) for part in parts]
        return Table((what, *names), rows, tuple(range(1, len(names) + 1)), title=title)
    (values,) = by_run
    total = max(sum(values.values()), 1e-9)
    shares = [(part, value, f"{value / total:.0%}") for part, value in values.items()]
    return Table((what, "", "share"), shares, (1,), title=title)

"""The dated result files of ``bench/results``: JSON to compute with, Markdown to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import commit, describe_machine

RESULTS = Path(__file__).resolve().parent / "results"


def circumstances(load_before: float | None, provisional: bool) -> dict[str, Any]:
    """When, with which commit and on which machine a result was measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": describe_machine(),
        "load_before": load_before,
        "provisional": provisional,
    }


def write_result(result: Mapping[str, Any], text: str, folder: Path = RESULTS) -> Path:
    """Write ``<date>-<name>.json`` and, for people, ``.md`` with the text; the first's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['date']}-{result['name']}.json"
    path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    path.with_suffix(".md").write_text(text)
    return path


def page(result: Mapping[str, Any], about: str, body: Sequence[str]) -> str:
    """A result for people: name, date and machine, what was measured, the lines, how to repeat."""
    machine = result["machine"]
    lines = [
        f"# {result['name']}",
        "",
        f"{result['date']}, commit {result['commit']}, {machine['cpu']}, {machine['cores']} cores. "
        f"{about}",
        "",
    ]
    if result["provisional"]:
        lines += ["**Provisional**: the machine was not quiet, or the run was short.", ""]
    return "\n".join([*lines, *body, "", f"Repeat: `{result['repeat'].strip()}`"]) + "\n"


def newest_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The newest side-by-side result of each name, sorted by name."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if "sides" in result:
            kept = newest.get(result["name"])
            if kept is None or kept["date"] <= result["date"]:
                newest[result["name"]] = result
    return [newest[name] for name in sorted(newest)]


def digits(value: float) -> str:
    """Three digits, or all before the point: 0.0684, 11.8, 1,711."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def with_interval(spread: Mapping[str, Any], scale: float = 1.0) -> str:
    """``median (low-high)`` to three digits."""
    median, low, high = (digits(spread[key] * scale) for key in ("median", "low", "high"))
    return median if low == high else f"{median} ({low}-{high})"


def markdown(result: Mapping[str, Any]) -> str:
    """One result for people: figures, settings, machine and the command to repeat it."""
    machine = result["machine"]
    sides = result["sides"]
    lines = [f"# {result['title']}", ""]
    if result.get("provisional"):
        lines += ["**Provisional**: few blocks, or a machine that was not quiet.", ""]
    lines += [
        result["work"],
        "",
        f"| | {sides[0]['label']} | {sides[1]['label']} | ratio | blocks |",
        "| --- | --- | --- | --- | --- |",
    ]
    names = {
        "wall": ("wall s an epoch, 2 threads", 1.0),
        "cpu": ("CPU s an epoch, 1 thread", 1.0),
        "memory": ("peak memory, MiB", 2.0**-20),
    }
    for mode, summary in result["summary"].items():
        name, scale = names[mode]
        lines.append(
            f"| {name} | {with_interval(summary['baseline'], scale)} "
            f"| {with_interval(summary['candidate'], scale)} "
            f"| {with_interval(summary['ratio'])} | {summary['ratio']['count']} |"
        )
    # a single block, as in memory runs, has no interval
    known = [s["ratio"]["coverage"] for s in result["summary"].values() if s["ratio"]["count"] > 1]
    lines += [
        "",
        "Median and distribution-free interval of the median (coverage "
        f"{min(known, default=0.0):.3f} where there are several blocks); "
        "ratios inside blocks of adjacent runs.",
        "",
        f"- date: {result['date']}, commit {result['commit']}",
        f"- machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {', '.join(machine['instructions'])}; governor "
        f"{machine['governor'] or 'not readable'}, huge pages {machine['huge_pages']}, "
        f"load before {machine['load_before']}",
        f"- allocator of both sides in speed runs: {_settings(result['allocator'])}",
        f"- repeat: `{result['repeat']}`",
    ]
    for index, side in enumerate(sides):
        versions = next(r["report"]["versions"] for r in result["runs"] if r["side"] == index)
        lines.append(f"- {side['label']} ({_settings(versions)}): `{side['command']}`")
        if side["environment"]:
            lines.append(f"  with {_settings(side['environment'])}")
    return "\n".join(lines) + "\n"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "as they come"

"""The dated result files of ``bench/results``: JSON to compute with, Markdown to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.harness import ENOUGH_BLOCKS
from bench.machine import commit, describe_machine

RESULTS = Path(__file__).resolve().parent / "results"
#: results measured with uncommitted changes, which cannot be repeated: not for Git
UNCOMMITTED = RESULTS.parents[1] / "build" / "bench-results"


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
    """Write ``<date>-<name>.json`` and, for people, ``.md`` with the text; the first's path.

    Results are never overwritten: the second of a day is ``<date>-<name>-repeat-2``. One that was
    measured with uncommitted changes goes to :data:`UNCOMMITTED` instead of :data:`RESULTS`.
    """
    if folder == RESULTS and result["commit"].endswith("+"):
        folder = UNCOMMITTED
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['date']}-{result['name']}.json"
    first, number = path.stem, 1
    while path.exists():
        number += 1
        path = path.with_name(f"{first}-repeat-{number}.json")
    record = {**result, "number": number}
    path.write_text(json.dumps(record, indent=1) + "\n")
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


def results_by_name(folder: Path = RESULTS) -> dict[str, list[dict[str, Any]]]:
    """The side-by-side results of each name, newest first; ``file`` is the name of the record."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in folder.glob("*.json"):
        result = json.loads(path.read_text())
        if isinstance(result.get("sides"), dict):
            found.setdefault(result["name"], []).append({**result, "file": path.stem})
    return {
        name: sorted(found[name], key=lambda r: (r["date"], r.get("number", 1)), reverse=True)
        for name in sorted(found)
    }


def newest_cases(
    name: str, folder: Path, models: Sequence[str], *keys: str
) -> list[dict[str, Any]]:
    """The newest record of each case of these results, in the order of the models.

    keys: what tells cases of a model apart. ``record`` is the name of the file, ``date`` its date.
    """
    records = [(json.loads(p.read_text()), p.stem) for p in folder.glob(f"*-{name}*.json")]
    records.sort(key=lambda record: (record[0]["date"], record[0]["number"]))
    found = {
        (models.index(case["model"]), *(case[key] for key in keys)): {
            **case, "record": file, "date": record["date"],
        }
        for record, file in records
        for case in record["cases"]
    }  # fmt: skip
    return [found[key] for key in sorted(found)]


def record_links(cases: Sequence[Mapping[str, Any]], folder: str) -> str:
    """When the cases were measured, with links to their records in a folder."""
    dates = {case["record"]: case["date"] for case in cases}
    links = (f"[{date}]({folder}/{file}.md)" for file, date in sorted(dates.items()))
    return f"Measured: {', '.join(links)}."


def earlier_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The results of before 2026-11-23, of one baseline, mostly of one or two blocks, by name."""
    found = ((path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json")))
    old = [{**result, "file": file} for file, result in found if _is_earlier(result)]
    return sorted(old, key=lambda result: (result["name"], result["file"]))


def _is_earlier(result: Mapping[str, Any]) -> bool:
    return isinstance(result.get("sides"), list)


def is_provisional(result: Mapping[str, Any]) -> bool:
    """Whether a result has too few blocks, or was marked when it was measured."""
    return result["provisional"] or blocks(result) < ENOUGH_BLOCKS


def blocks(result: Mapping[str, Any]) -> int:
    """The blocks of the timed modes; the fewest where they differ."""
    timed = (s for mode, s in result["summary"].items() if mode != "memory")
    return min((side["count"] for s in timed for side in s["sides"].values()), default=0)


def digits(value: float) -> str:
    """Three digits, or all before the point: 0.0684, 11.8, 1,711."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def with_interval(spread: Mapping[str, Any], scale: float = 1.0) -> str:
    """``median (low-high)`` to three digits."""
    median, low, high = (digits(spread[key] * scale) for key in ("median", "low", "high"))
    return median if low == high else f"{median} ({low}-{high})"


def markdown(result: Mapping[str, Any]) -> str:
    """One result for people: figures, settings, machine and the command to repeat it."""
    machine, sides, code = result["machine"], result["sides"], result["sources"]
    lines = [f"# {result['title']}", ""]
    if result.get("provisional"):
        lines += [f"**Provisional**: fewer than {ENOUGH_BLOCKS} blocks.", ""]
    lines += [result["work"], ""]
    names = {
        "wall": ("wall s an epoch, 2 threads", 1.0),
        "cpu": ("CPU s an epoch, 1 thread", 1.0),
        "memory": ("peak memory, MiB", 2.0**-20),
    }
    for mode, summary in result["summary"].items():
        name, scale = names[mode]
        lines += [f"| {name} | | divided by hasten's | blocks |", "| --- | --- | --- | --- |"]
        for role, found in summary["sides"].items():
            ratio = summary["ratios"].get(role)
            lines.append(
                f"| {sides[role]['label']} | {with_interval(found, scale)} "
                f"| {with_interval(ratio) if ratio else ''} | {found['count']} |"
            )
        lines.append("")
    # a single block, as in memory runs, has no interval
    spreads = [side for s in result["summary"].values() for side in s["sides"].values()]
    known = [found["coverage"] for found in spreads if found["count"] > 1]
    lines += [
        "Median and distribution-free interval of the median (coverage "
        f"{min(known, default=0.0):.3f} where there are several blocks); "
        "ratios inside blocks of adjacent runs.",
        "",
        f"- date: {result['date']}, commit {result['commit']}",
        f"- machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {', '.join(machine['instructions'])}; governor "
        f"{machine['governor'] or 'not readable'}, huge pages {machine['huge_pages']}, "
        f"load before {machine['load_before']}",
        f"- code: {sum(map(len, code['functions'].values()))} functions of "
        f"{len(code['functions'])} files, {code['sha256'][:12]}",
        f"- allocator of all sides in speed runs: {_settings(result['allocator'])}",
        f"- repeat: `{result['repeat']}`",
    ]
    for role, side in sides.items():
        versions = next(r["report"]["versions"] for r in result["runs"] if r["side"] == role)
        lines.append(
            f"- {side['label']} ({_settings(versions)}), timed {timed_part(result, role)} of "
            f"an epoch: `{side['command']}`"
        )
        if side["environment"]:
            lines.append(f"  with {_settings(side['environment'])}")
    return "\n".join(lines) + "\n"


def timed_part(result: Mapping[str, Any], role: str) -> str:
    """The part of an epoch that a side timed: ``5.1 %``. Runs for memory alone time nothing."""
    runs = [r for r in result["runs"] if r["side"] == role]
    timed = [r for r in runs if r["mode"] != "memory"] or runs
    part = min(run["report"].get("coverage", 1.0) for run in timed)
    return f"{100 * part:.2g} %" if part < 1 else "100 %"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "as they come"

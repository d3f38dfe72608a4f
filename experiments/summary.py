"""A table of mean ± standard deviation over seeds, and learning curves, from the kept results.

    python -m experiments.summary [--check]

Writes ``docs/experiments.md`` and one SVG a group beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench.machine import ROOT

RESULTS = ROOT / "experiments" / "results"
DOCS = ROOT / "docs"

HEAD = """# Experiments

Written by `make docs` from `experiments/results`; run or go on with `make experiments`. Mean ±
standard deviation over seeds, test figures of the checkpoint that was selected on validation.
"""


def load_groups(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results by group, seeds in order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        groups.setdefault(record["group"], []).append(record)
    return groups


def over_seeds(values: Sequence[float], digits: int) -> str:
    """``mean ± sd``; the value alone where there is one seed."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def document(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The Markdown page."""
    if not groups:
        return HEAD + "\nNo result yet.\n"
    lines = [
        HEAD,
        "| group | seeds | test | epochs | training s | peak MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for group, records in groups.items():
        metrics = ", ".join(
            f"{name} {over_seeds([record['test'][name] for record in records], 4)}"
            for name in records[0]["test"]
        )
        lines.append(
            f"| [{group}](#{group}) | {len(records)} | {metrics} "
            f"| {over_seeds([record['epochs'] for record in records], 0)} "
            f"| {over_seeds([record['seconds']['train'] for record in records], 0)} "
            f"| {max(record['peak_memory_bytes'] for record in records) / 2**20:.0f} |"
        )
    for group, records in groups.items():
        first = records[0]
        protocols = sorted({record["protocol"] for record in records})
        lines += [
            "",
            f"## {group}",
            "",
            f"- data: {first['data']}; protocol: {'; '.join(protocols)}",
            f"- `hasten train {first['model']} DATA {' '.join(first['options'])}`, seeds "
            + ", ".join(str(record["seed"]) for record in records),
            f"- {first['date']}, commit {first['commit']}, {first['machine']['cpu']}, "
            f"{first['machine']['cores']} cores, torch {first['versions']['torch']}",
            *also_judged(records),
            "",
            f"![learning curves of {group}](experiments/{group}.svg)",
        ]
    return "\n".join(lines) + "\n"


def also_judged(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each further protocol that finished runs were judged by, and by how many."""
    tests: dict[str, list[Mapping[str, float]]] = {}
    for record in records:
        for judged in record.get("also", ()):
            tests.setdefault(judged["protocol"], []).append(judged["test"])
    lines = []
    for protocol, found in tests.items():
        metrics = ", ".join(
            f"{name} {over_seeds([test[name] for test in found], 4)}" for name in found[0]
        )
        some = "" if len(found) == len(records) else f", {len(found)} of {len(records)} seeds"
        lines.append(f"- the same checkpoints by another protocol: {metrics} ({protocol}{some})")
    return lines


def draw(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Validation metric over epochs and over seconds of training, a line a seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "hasten", "svg.fonttype": "none", "font.size": 9}):
        figure, (by_epoch, by_time) = pyplot.subplots(1, 2, figsize=(8, 3), sharey=True)
        metric = next(iter(records[0]["valid"]))
        for record in records:
            epochs, seconds, values, elapsed = [], [], [], 0.0
            for entry in record["curve"]:
                elapsed += entry.get("seconds", 0.0)
                if metric in entry:
                    epochs.append(entry["epoch"])
                    seconds.append(elapsed)
                    values.append(entry[metric])
            by_epoch.plot(epochs, values, label=f"seed {record['seed']}", linewidth=1)
            by_time.plot(seconds, values, linewidth=1)
        by_epoch.set(xlabel="epoch", ylabel=f"validation {metric}")
        by_time.set(xlabel="seconds of training")
        by_epoch.legend(frameon=False)
        for axes in (by_epoch, by_time):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def write_pages(results: Path = RESULTS, docs: Path = DOCS) -> list[Path]:
    """Write the page and the pictures; the files that were written."""
    groups = load_groups(results)
    page = docs / "experiments.md"
    page.write_text(document(groups))
    pictures = [docs / "experiments" / f"{group}.svg" for group in groups]
    for records, picture in zip(groups.values(), pictures, strict=True):
        draw(records, picture)
    return [page, *pictures]


def main(arguments: Sequence[str], results: Path = RESULTS, docs: Path = DOCS) -> int:
    if "--check" not in arguments:
        write_pages(results, docs)
        return 0
    page = docs / "experiments.md"
    if not page.exists() or page.read_text() != document(load_groups(results)):
        print("docs/experiments.md is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

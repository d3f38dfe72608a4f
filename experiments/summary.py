"""Tables of mean ± standard deviation over seeds, and learning curves, from the kept results.

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
from experiments.opening import read_opened

RESULTS = ROOT / "experiments" / "results"
DOCS = ROOT / "docs"

HEAD = """# Experiments

Written by `make docs` from `experiments/results`. Mean ± standard deviation over seeds, of the
checkpoint that was selected on validation.

## How an experiment is run

```sh
make experiments                                             # run what has no result yet
make experiments ARGS="--only conve-umls --max-time 3600"    # some of it, for an hour
make experiments ARGS="--only complex-fb15k --jobs 3"        # several at once, as on a GPU
python -m experiments.queue groups                           # the groups, sealed or opened
python -m experiments.queue open conve-umls-settings         # the test figures of a group
```

**Test sets are sealed.** A run of the queue is evaluated on validation alone
(`evaluation.test=false`). The configurations of one model on one data set that answer one question
form a group (`experiments/definitions.py`). `open` selects the configuration with the best
validation mean, evaluates its runs on the test set, and appends one line to
`experiments/results/opened.jsonl`: date, commit, all validation figures of the group, the selected
configuration and its test figures. A group is opened once; later only further seeds of the selected
configuration are evaluated on the test set. To compare further configurations, define a new group.

† Runs from before 2026-11-23 were evaluated on test at their end, whatever validation said.

## Results
"""


def load_configurations(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results by configuration, seeds in order, with the test figures of opened groups."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        # records from before groups were sealed call their configuration a group
        found.setdefault(record.get("configuration", record["group"]), []).append(record)
    for entry in read_opened(folder):
        figures = {each["seed"]: each for each in entry["test"]}
        for record in found[entry["selected"]]:
            if record["seed"] in figures:
                record["opened"] = {"date": entry["date"], **figures[record["seed"]]}
    return found


def over_seeds(values: Sequence[float], digits: int) -> str:
    """``mean ± sd``; the value alone where there is one seed."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def means(figures: Sequence[Mapping[str, float]]) -> str:
    """Each metric over seeds: ``mrr 0.9466 ± 0.0020, hits@10 0.9909 ± 0.0016``."""
    names = figures[0] if figures else ()
    return ", ".join(f"{name} {over_seeds([each[name] for each in figures], 4)}" for name in names)


def test_figures(records: Sequence[Mapping[str, Any]]) -> str:
    """The test figures of a configuration, or why there are none."""
    before = [record["test"] for record in records if "test" in record]
    opened = [record["opened"] for record in records if "opened" in record]
    figures = [each["test"] for each in opened] or before
    if not figures:
        return "sealed"
    notes = [f"opened {opened[0]['date']}"] if opened else []
    notes += [f"{len(figures)} of {len(records)} seeds"] if len(figures) < len(records) else []
    return means(figures) + " †" * bool(before) + (f" ({', '.join(notes)})" if notes else "")


def document(configurations: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The Markdown page."""
    if not configurations:
        return HEAD + "\nNo result yet.\n"
    lines = [
        HEAD,
        "| configuration | seeds | validation | test | epochs | training s | peak MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, records in configurations.items():
        metric = records[0]["config"]["evaluation"]["metrics"][0]
        lines.append(
            f"| [{name}](#{name}) | {len(records)} "
            f"| {means([{metric: record['valid'][metric]} for record in records])} "
            f"| {test_figures(records)} "
            f"| {over_seeds([record['epochs'] for record in records], 0)} "
            f"| {over_seeds([record['seconds']['train'] for record in records], 0)} "
            f"| {max(record['peak_memory_bytes'] for record in records) / 2**20:.0f} |"
        )
    for name, records in configurations.items():
        first = records[0]
        protocols = sorted({record["protocol"] for record in records})
        lines += [
            "",
            f"## {name}",
            "",
            f"- data: {first['data']}; protocol: {'; '.join(protocols)}",
            f"- `hasten train {first['model']} DATA {' '.join(first['options'])}`, seeds "
            + ", ".join(str(record["seed"]) for record in records),
            f"- {first['date']}, commit {first['commit']}, {processor(first['machine'])}, "
            f"torch {first['versions']['torch']}",
            *also_judged(records),
            "",
            f"![learning curves of {name}](experiments/{name}.svg)",
        ]
    return "\n".join(lines) + "\n"


def processor(machine: Mapping[str, Any]) -> str:
    """The GPU that a run used, or the CPU with its number of cores."""
    usual = f"{machine['cpu']}, {machine['cores']} cores"
    return str(machine.get("accelerator", usual))


def also_judged(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each further protocol that finished runs were judged by, and by how many."""
    figures: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for record in records:
        for judged in record.get("opened", record).get("also", ()):
            part = "test" if "test" in judged else "valid"
            figures.setdefault((part, judged["protocol"]), []).append(judged[part])
    lines = []
    for (part, protocol), found in figures.items():
        which = "validation, " if part == "valid" else ""
        some = "" if len(found) == len(records) else f", {len(found)} of {len(records)} seeds"
        lines.append(
            f"- the same checkpoints by another protocol: {which}{means(found)} ({protocol}{some})"
        )
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
    configurations = load_configurations(results)
    page = docs / "experiments.md"
    page.write_text(document(configurations))
    pictures = [docs / "experiments" / f"{name}.svg" for name in configurations]
    for records, picture in zip(configurations.values(), pictures, strict=True):
        draw(records, picture)
    return [page, *pictures]


def main(arguments: Sequence[str], results: Path = RESULTS, docs: Path = DOCS) -> int:
    if "--check" not in arguments:
        write_pages(results, docs)
        return 0
    page = docs / "experiments.md"
    if not page.exists() or page.read_text() != document(load_configurations(results)):
        print("docs/experiments.md is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

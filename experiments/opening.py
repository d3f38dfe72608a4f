"""Sealed test sets: compute test figures once, for the configuration that validation selects.

Runs of the queue are evaluated on validation alone. Opening a group selects the configuration with
the best validation mean, evaluates its runs on the test set and appends one line to
``experiments/results/opened.jsonl``. A group is opened once; later only further seeds of the
selected configuration are evaluated on the test set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from bench.machine import commit
from experiments.evaluate import check_embeddings, evaluate
from experiments.experiment import Experiment

if TYPE_CHECKING:
    from experiments.queue import Queue

#: the append-only record, under the folder of the results
OPENED = "opened.jsonl"

Records = Mapping[str, Sequence[Mapping[str, Any]]]


class OpeningError(RuntimeError):
    """A group cannot be opened: its runs are not finished, or it was opened before."""


def open_group(queue: Queue, group: str, experiments: Sequence[Experiment]) -> dict[str, Any]:
    """Select by validation, evaluate the selected runs on test, and append the record.

    Of a group that was opened before, further seeds of the selected configuration are evaluated.

    Raises OpeningError if the group is unknown or unfinished, or was opened before and has no
    further seeds, or configurations that were not there when one was selected.
    """
    members = [experiment for experiment in experiments if experiment.group == group]
    if not members:
        known = ", ".join(sorted({experiment.group for experiment in experiments}))
        raise OpeningError(f"no group {group!r}; there are {known}")
    earlier = [entry for entry in read_opened(queue.results) if entry["group"] == group]
    seen = {each["seed"] for entry in earlier for each in entry["test"]}
    if earlier and not _only_adds_seeds(earlier[0], seen, members):
        raise OpeningError(
            f"{group} was opened on {earlier[-1]['date']}; to compare further configurations, "
            "define a new group"
        )
    unfinished = [e.name for e in members if queue.state(e) != "done"]
    if unfinished:
        raise OpeningError(f"{group} is not finished: {', '.join(unfinished)}")
    records: dict[str, list[dict[str, Any]]] = {}
    for experiment in members:
        record = json.loads(queue.result(experiment).read_text())
        records.setdefault(experiment.configuration, []).append(record)
    metric, selected = select_configuration(records)
    if earlier:  # what was selected stays selected
        selected = earlier[0]["selected"]
    chosen = [experiment for experiment in members if experiment.configuration == selected]
    pairs = zip(chosen, records[selected], strict=True)
    entry = {
        "group": group,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "metric": metric,
        "valid": {
            name: [{"seed": record["seed"], **record["valid"]} for record in found]
            for name, found in records.items()
        },
        "selected": selected,
        # records of runs from before test sets were sealed hold test figures
        "test_seen_before": [
            name for name, found in records.items() if any("test" in record for record in found)
        ],
        "test": [
            _test_figures(queue, experiment, record)
            for experiment, record in pairs
            if experiment.seed not in seen
        ],
    }
    append_opened(queue.results, entry)
    return entry


def _only_adds_seeds(
    first: Mapping[str, Any], seen: set[int], members: Sequence[Experiment]
) -> bool:
    """Whether a group has the configurations of its first opening, and more seeds of the selected.

    seen: the seeds whose test figures are known.
    """
    if {experiment.configuration for experiment in members} != set(first["valid"]):
        return False
    chosen = {e.seed for e in members if e.configuration == first["selected"]}
    return not chosen <= seen


def select_configuration(records: Records) -> tuple[str, str]:
    """The metric that selects, and the configuration with its highest mean on validation."""
    all_records = [record for found in records.values() for record in found]
    metrics = {record["config"]["evaluation"]["metrics"][0] for record in all_records}
    if len(metrics) != 1:
        raise OpeningError(f"the configurations are selected by {', '.join(sorted(metrics))}")
    (metric,) = metrics
    means = {name: mean(r["valid"][metric] for r in found) for name, found in records.items()}
    return metric, max(means, key=means.__getitem__)


def _test_figures(
    queue: Queue, experiment: Experiment, record: Mapping[str, Any]
) -> dict[str, Any]:
    """The test figures of a selected run; those of its record where it holds them."""
    if "test" in record:
        found = {name: record[name] for name in ("test", "protocol", "also", "embeddings")
                 if name in record}  # fmt: skip
        return {"seed": experiment.seed, **found}
    run = queue.folder(experiment)
    if not run.exists():
        raise OpeningError(f"the run folder of {experiment.name} is gone: train it again")
    figures: dict[str, Any] = {
        "seed": experiment.seed,
        **evaluate(queue.command, run, "test"),
        "also": [evaluate(queue.command, run, "test", options) for options in experiment.also],
    }
    if experiment.embeddings:
        figures["embeddings"] = check_embeddings(queue.command, run, "test")
    return figures


def read_opened(results: Path) -> list[dict[str, Any]]:
    """The records of opened groups, oldest first. Raises OpeningError if a line was changed."""
    path = results / OPENED
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    entries = [json.loads(line) for line in lines]
    for number, entry in enumerate(entries):
        if entry["after"] != _digest("".join(lines[:number])):
            raise OpeningError(f"{OPENED}, line {number + 1}: the lines above it have changed")
    return entries


def append_opened(results: Path, entry: Mapping[str, Any]) -> None:
    """Append one record with a digest of those before it."""
    path = results / OPENED
    before = path.read_text() if path.exists() else ""
    with path.open("a") as file:
        file.write(json.dumps({**entry, "after": _digest(before)}, sort_keys=True) + "\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_groups(results: Path, experiments: Sequence[Experiment]) -> None:
    """Print each group, its configurations and whether it was opened."""
    opened = {entry["group"]: entry["date"] for entry in read_opened(results)}
    groups: dict[str, dict[str, None]] = {}
    for experiment in experiments:
        groups.setdefault(experiment.group, {})[experiment.configuration] = None
    for group, configurations in groups.items():
        state = f"opened {opened[group]}" if group in opened else "sealed"
        print(f"{state:18s} {group}: {', '.join(configurations)}")

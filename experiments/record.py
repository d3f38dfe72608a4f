"""The small result of one run: what is kept in git when the run folder is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from bench.machine import commit, describe_machine
from experiments.experiment import Experiment

#: keys of a run's JSON result that are kept as they are
KEPT = (
    "epochs",
    "valid",
    "protocol",
    "seconds",
    "examples_per_second",
    "peak_memory_bytes",
    "effective",
)


def make_record(experiment: Experiment, result: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Validation metrics with their protocol, cost, configuration, curve, version and machine.

    No paths, and no test figures: those are in the record of the opened group.
    """
    environment = json.loads((folder / "environment.json").read_text())
    return {
        "name": experiment.name,
        "group": experiment.group,
        "configuration": experiment.configuration,
        "model": experiment.model,
        "data": experiment.data,
        "options": list(experiment.options),
        "seed": experiment.seed,
        "fingerprint": experiment.fingerprint,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "versions": environment["versions"],
        "machine": {**describe_machine(), **accelerator(environment)},
        "config": portable_config(folder / "config.yaml", experiment.data),
        "curve": curve(folder / "metrics.jsonl"),
        **{key: result[key] for key in KEPT},
    }


def accelerator(environment: Mapping[str, Any]) -> dict[str, str]:
    """The name of the GPU that a run saw; {} on a CPU."""
    names = [each["name"] for each in environment.get("devices", ()) if each["device"] != "cpu"]
    return {"accelerator": names[0]} if names else {}


def portable_config(path: Path, data: str) -> dict[str, Any]:
    """The resolved configuration with the data's name for its path and without the run folder."""
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    config.pop("out", None)
    config["data"] = {**config["data"], "path": data}
    return config


def curve(path: Path) -> list[dict[str, float]]:
    """An entry an epoch: loss, seconds and the validation metrics where it was evaluated."""
    epochs: dict[int, dict[str, float]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        entry = epochs.setdefault(record["epoch"], {"epoch": record["epoch"]})
        if record["kind"] == "train":
            # of several phases the first one's
            losses = [record[name] for name in record if name.split(".")[-1] == "loss"]
            if losses:  # what counts has none
                entry["loss"] = _short(losses[0])
            entry["seconds"] = _short(record["seconds"])
        elif record["kind"] == "valid":
            entry |= {
                name: _short(value)
                for name, value in record.items()
                if "@" in name or name == "mrr"
            }
    return [epochs[epoch] for epoch in sorted(epochs) if len(epochs[epoch]) > 1]


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    unfinished.replace(path)


def _short(value: float) -> float:
    return float(f"{value:.5g}")

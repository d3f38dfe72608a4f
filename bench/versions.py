"""Two versions of hasten side by side: speed, memory and losses of the same training runs.

    python -m bench.versions --before CHECKOUT [NAME ...] [--blocks 5]

Every run is ``hasten train`` in a process of its own, with one thread, in the order A B B A.
Writes ``bench/results/DATE-versions.json`` and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.data import plain_file
from bench.machine import ROOT, commit, describe_machine, load
from experiments.definitions import EXPERIMENTS
from experiments.experiment import configuration_keys

#: name -> an experiment whose data and options are taken, and what shortens its run
RUNS: Mapping[str, tuple[str, str]] = {
    "sasrec-beauty-ce": ("sasrec-beauty-ce", "--epochs 1"),
    "sasrec-beauty-bce": ("sasrec-beauty-ce", "--set model.loss=bce --epochs 5"),
    "tisasrec-beauty-ce": ("tisasrec-beauty-ce", "--epochs 1"),
    "conve-umls": (
        "conve-umls",
        "--epochs 10 --set model.loss=1-n --set model.channels=32 --set model.feature_dropout=0.2 "
        "--set model.input_dropout=0.2 --set training.average=none",
    ),
    "kgat-ml-100k": ("kgat-ml-100k-fixed", "--epochs 3"),
    "hgt-redda-k": ("hgt-redda-k", "--epochs 1 --batch-size 5000"),
    "mmgcn-tiktok": ("mmgcn-tiktok", "--epochs 1"),
}
#: switches off what the version before may not have and would refuse to name
_AFTER: Mapping[str, str] = {
    "conve-umls": "--set model.exclude_self=false",
    "hgt-redda-k": (
        "--set model.self_score=false --set model.relation_weights=ones "
        "--set model.shallow_width=0 --set model.output_dropout=0 --set model.n3=0 "
        "--set model.exclude_self=false --set model.contrastive_weight=0.5 "
        "--set model.query_dropout=0 --set model.filter_negatives=true --set training.average=none"
    ),
}
_LATER = "--eval-every 1000 --patience none --set training.schedule=constant"


def command(name: str, seed: int, out: Path, more: str = "") -> list[str]:
    """The run's command line; more: options of one side only."""
    configuration, shorter = RUNS[name]
    experiment = next(e for e in EXPERIMENTS if e.configuration == configuration and e.seed == 0)
    # as single keys: the other version may have no recipes
    keys = configuration_keys(experiment.model, experiment.options)
    for key in ("training.patience", "training.epochs", "evaluation.every"):
        keys.pop(key, None)
    given = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    options = [*given, *_LATER.split(), *shorter.split(), *more.split()]
    words = [sys.executable, "-m", "hasten", "train", experiment.model]
    words += [str(plain_file(experiment.data)), *options, "--seed", str(seed)]
    return [*words, "--threads", "1", "--device", "cpu", "--json", "--quiet", "--out", str(out)]


def measure(name: str, checkout: Path, seed: int = 0) -> dict[str, Any]:
    """One run: seconds of the command and of training, peak memory, losses by epoch, metrics.

    What is imported when it is needed first counts as training in one version and not in another,
    so short runs are compared by the seconds of the whole command.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        words = command(name, seed, out, _AFTER.get(name, "") if checkout == ROOT else "")
        start = time.perf_counter()
        done = subprocess.run(
            words, env=environment, cwd=scratch, capture_output=True, text=True, check=False
        )
        command_seconds = time.perf_counter() - start
        if done.returncode != 0:
            raise SystemExit(f"{name} of {checkout} failed:\n{done.stderr[-2000:]}")
        summary = json.loads(done.stdout.splitlines()[-1])
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        epochs = [line for line in lines if line["kind"] == "train"]
    costs = {"lr", "seconds", "examples_per_second", "kind", "epoch", "step", "time"}
    return {
        "command_seconds": command_seconds,
        "seconds": summary["seconds"]["train"],
        "peak_memory_bytes": summary["peak_memory_bytes"],
        "losses": [{k: v for k, v in epoch.items() if k not in costs} for epoch in epochs],
        "test": summary["test"],
    }


def compare(name: str, before: Path, blocks: int) -> dict[str, Any]:
    """Runs of both sides in the order A B B A, and what they say."""
    sides: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    for block in range(blocks):
        order = ("before", "after") if block % 2 == 0 else ("after", "before")
        for side in order:
            sides[side].append(measure(name, before if side == "before" else ROOT))
    pairs = list(zip(sides["before"], sides["after"], strict=True))
    return {
        "name": name,
        "blocks": blocks,
        "seconds": {side: [run["seconds"] for run in runs] for side, runs in sides.items()},
        "command_seconds": {s: [run["command_seconds"] for run in r] for s, r in sides.items()},
        "memory": {s: [run["peak_memory_bytes"] for run in runs] for s, runs in sides.items()},
        "command_ratio": median(a["command_seconds"] / b["command_seconds"] for b, a in pairs),
        "time_ratio": median(a["seconds"] / b["seconds"] for b, a in pairs),
        "memory_ratio": median(a["peak_memory_bytes"] / b["peak_memory_bytes"] for b, a in pairs),
        "same_losses": all(a["losses"] == b["losses"] for b, a in pairs),
        "losses": {side: runs[0]["losses"] for side, runs in sides.items()},
        "test": {side: runs[0]["test"] for side, runs in sides.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the named runs (all), print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *RUNS], metavar="NAME")
    parser.add_argument(
        "--before", type=Path, required=True, help="a checkout of the other version"
    )
    parser.add_argument("--blocks", type=int, default=5, help="pairs of runs (5)")
    given = parser.parse_args(arguments)
    date = datetime.now(UTC).date().isoformat()
    result = ROOT / "bench" / "results" / f"{date}-versions.json"
    old = json.loads(result.read_text())["runs"] if result.exists() else []
    record: dict[str, Any] = {
        "date": date,
        "before": _revision(given.before),
        "after": commit(),
        "machine": describe_machine(),
        "load_before": load(),
        "runs": old,
    }
    print("| run | before s | after s | training | whole command | memory | same losses |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in given.names or RUNS:
        found = compare(name, given.before, given.blocks)
        record["runs"] = [*record["runs"], found]
        before, after = (median(found["seconds"][side]) for side in ("before", "after"))
        print(
            f"| {name} | {before:.2f} | {after:.2f} | {found['time_ratio']:.3f} | "
            f"{found['command_ratio']:.3f} | {found['memory_ratio']:.3f} | "
            f"{'yes' if found['same_losses'] else 'no'} |",
            flush=True,
        )
        result.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def _revision(checkout: Path) -> str:
    words = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(
        words, cwd=checkout, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

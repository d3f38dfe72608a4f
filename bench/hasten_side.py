"""Hasten's side: ``hasten train`` as a user runs it, its figures read from the run folder.

    python -m bench.hasten_side --data beauty --epochs 3 --skip 1 --set model.loss=bce

Arguments that are not known here go to ``hasten train`` as they are. The first ``--skip`` epochs
warm up; the others are reported.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.data import plain_file
from bench.report import print_report


def train(arguments: list[str], out: Path) -> dict[str, Any]:
    """Run ``hasten train`` into ``out``; its JSON result. Ends this process where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "hasten", "train", *arguments, "--out", str(out), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def epochs_of(run: Path) -> list[dict[str, Any]]:
    """The training records of a run, one an epoch."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record for record in records if record.get("kind") == "train"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", default="sasrec")
    parser.add_argument("--data", default="beauty", choices=("beauty", "ml-1m"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--skip", type=int, default=1, help="epochs before those reported")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--evaluate", action="store_true", help="report the test metric")
    options, passed_on = parser.parse_known_args()

    arguments = [options.model, str(plain_file(options.data)), "--device", "cpu", "--quiet"]
    arguments += ["--epochs", str(options.epochs), "--threads", str(options.threads)]
    if not options.evaluate:
        arguments += ["--eval-every", str(options.epochs)]
    with tempfile.TemporaryDirectory() as scratch:
        result = train(arguments + passed_on, Path(scratch) / "run")
        epochs = epochs_of(Path(scratch) / "run")[options.skip :]
        environment = json.loads((Path(scratch) / "run" / "environment.json").read_text())
    steps = sum(epoch["steps"] for epoch in epochs)
    print_report(
        wall=sum(epoch["seconds"] for epoch in epochs),
        cpu=sum(epoch["cpu_seconds"] for epoch in epochs),
        steps=steps,
        steps_per_epoch=steps // len(epochs),
        examples_per_epoch=sum(epoch["examples"] for epoch in epochs) // len(epochs),
        versions={name: environment["versions"][name] for name in ("torch", "hasten")},
        threads=options.threads,
        metric=result["test"] if options.evaluate else None,
        memory=result["peak_memory_bytes"],
        seconds=result["seconds"],
        effective=result["effective"],
    )


if __name__ == "__main__":
    main()

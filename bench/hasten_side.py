"""Hasten's side: ``hasten train`` as a user runs it, watched from outside.

    python -m bench.hasten_side --data beauty --epochs 4 --skip 1 --set model.loss=bce

Arguments that are not known here go to ``hasten train`` as they are. The first ``--skip`` epochs
warm up, and the last is left out too, because the run is evaluated and saved after it. Wall seconds
are those of the run's own records; CPU seconds are read from the system when a record appears.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.data import GRAPHS, plain_file
from bench.report import print_report

#: seconds between two looks at a run
_EVERY = 0.05


class Watched:
    """A run of ``hasten train`` and the CPU seconds it had used at the end of each epoch."""

    def __init__(self, program: list[str], arguments: list[str], out: Path) -> None:
        self.out = out
        self.cpu: list[float] = []
        self.result: dict[str, Any] = {}
        command = [sys.executable, "-m", *program, "train", *arguments, "--out", str(out), "--json"]
        with (
            tempfile.TemporaryFile("w+") as printed,
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(command, stdout=printed, stderr=errors) as process,
        ):
            seen = 0
            while process.poll() is None:
                # a look at the size alone: what is measured has all the cores
                if (size := self.written()) != seen:
                    seen = size
                    self.look(process.pid)
                time.sleep(_EVERY)
            printed.seek(0)
            errors.seek(0)
            text = printed.read()
            if process.returncode != 0:
                raise SystemExit(text + errors.read())
        self.result = json.loads(text.splitlines()[-1])

    def written(self) -> int:
        """The bytes of the run's records."""
        try:
            return (self.out / "metrics.jsonl").stat().st_size
        except FileNotFoundError:
            return 0

    def look(self, process: int) -> None:
        """Note the CPU seconds if one more epoch has ended."""
        if len(self.epochs()) > len(self.cpu):
            self.cpu.append(cpu_seconds(process))

    def epochs(self) -> list[dict[str, Any]]:
        """The training records so far, one an epoch."""
        path = self.out / "metrics.jsonl"
        if not path.exists():
            return []
        *lines, _unfinished = path.read_text().split("\n")
        records = [json.loads(line) for line in lines]
        return [record for record in records if record["kind"] == "train"]


def first_loss(record: dict[str, Any]) -> float:
    """The loss of an epoch; of several phases the first one's."""
    return next(float(record[name]) for name in record if name.split(".")[-1] == "loss")


def cpu_seconds(process: int) -> float:
    """User and system seconds of a running process, all threads together."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", default="sasrec")
    parser.add_argument(
        "--data", default="beauty", choices=("beauty", "ml-1m", "ml-100k-facts", *GRAPHS)
    )
    parser.add_argument("--epochs", type=int, default=4, help="in all, at least --skip + 2")
    parser.add_argument("--skip", type=int, default=1, help="epochs before those reported")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without", metavar="WHAT", help="take this away (bench.without)")
    parser.add_argument("--evaluate", action="store_true", help="report the test metric")
    options, passed_on = parser.parse_known_args()
    if options.skip < 1 or options.epochs < options.skip + 2:
        parser.error("at least one epoch to skip, one to report and the last are needed")

    count = str(options.epochs)
    arguments = [options.model, str(plain_file(options.data)), "--device", "cpu", "--quiet"]
    arguments += ["--epochs", count, "--threads", str(options.threads), "--eval-every", count]
    arguments += ["--set", f"checkpoint.every={count}"]
    with tempfile.TemporaryDirectory() as scratch:
        program = ["bench.without", options.without] if options.without else ["hasten"]
        run = Watched(program, arguments + passed_on, Path(scratch) / "run")
        records = run.epochs()
        environment = json.loads((run.out / "environment.json").read_text())
    measured = records[options.skip : -1]
    steps = measured[-1]["step"] - records[options.skip - 1]["step"]
    examples = sum(r["examples_per_second"] * r["seconds"] for r in measured)
    print_report(
        wall=sum(record["seconds"] for record in measured),
        cpu=run.cpu[-2] - run.cpu[options.skip - 1],
        steps=steps,
        steps_per_epoch=steps // len(measured),
        examples_per_epoch=round(examples / len(measured)),
        versions={name: environment["versions"][name] for name in ("torch", "hasten")},
        threads=options.threads,
        memory=run.result["peak_memory_bytes"],
        metric=run.result["test"] if options.evaluate else None,
        loss=first_loss(measured[-1]),
        seconds=run.result["seconds"],
        effective=run.result["effective"],
    )


if __name__ == "__main__":
    main()

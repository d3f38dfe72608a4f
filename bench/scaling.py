"""Examples per second over numbers of processes, and what the distributed path costs one process.

    python -m bench.scaling --devices 1 2 4
    python -m bench.scaling --devices 1 2 4 8 --device cuda --threads 4
    python -m bench.scaling --data ml-100k-facts --per-device --batch-size 1024

Every measurement is a fresh ``hasten train`` of the same global batch (with ``--per-device`` of the
same batch for each process) with a fixed number of threads a process; rounds alternate between the
counts. "launched" is one process under torchrun, which makes a process group and exchanges with
nobody: its cost against none is the overhead. "apart" is as many trainings as the largest count at
once, each alone with its share of the batch: what the machine has for processes that share nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.data import plain_file
from bench.facts_split import PARTS
from bench.machine import KEEP_PAGES, load
from bench.results import RESULTS, circumstances, page, write_result
from bench.statistics import spread

LAUNCHED, APART = "launched", "apart"
LABELS = {LAUNCHED: "1 under torchrun", APART: "as many, each a training of its own"}
MODELS = {"ml-1m": "sasrec", "beauty": "sasrec", "ml-100k-facts": "kgat", "kinship": "conve"}


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2], help="process counts")
    parser.add_argument("--data", default="ml-1m", choices=tuple(MODELS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a process")
    parser.add_argument("--batch-size", type=int, default=512, help="over all processes")
    parser.add_argument("--per-device", action="store_true", help="--batch-size is a process's")
    parser.add_argument("--epochs", type=int, default=5, help="the first and the last are left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], help="more settings")
    parser.add_argument("--counts-only", action="store_true", help="neither launched nor apart")
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    if options.epochs < 3:
        parser.error("at least three epochs: the first and the last are left out")
    if options.devices[0] != 1:
        parser.error("the first count is what the others are compared with: 1")
    result = measure(options)
    path = write_result(result, markdown(result), results)
    print(markdown(result))
    print(path)
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sides: list[int | str] = [*options.devices]
    sides += [] if options.counts_only else [LAUNCHED, APART]
    rates: dict[str, list[float]] = {str(side): [] for side in sides}
    before = load()
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            rate = run_once(side, options)
            rates[str(side)].append(rate)
            print(f"round {number + 1}, {side}: {rate:,.0f} examples/s", file=sys.stderr)
    speedups = {
        name: spread([many / one for many, one in zip(values, rates["1"], strict=True)])
        for name, values in rates.items()
    }
    return {
        "name": f"scaling-{options.data}-{options.device}"
        + ("-per-device" if options.per_device else ""),
        **circumstances(before, options.provisional),
        "settings": {
            "model": MODELS[options.data],
            "batch_size": options.batch_size,
            "per_device": options.per_device,
            "threads": options.threads,
            "epochs": options.epochs,
            "sets": settings(options),
        },
        "examples_per_second": {name: spread(values) for name, values in rates.items()},
        "against_one": speedups,
        "repeat": "python -m bench.scaling " + " ".join(sys.argv[1:]),
    }


def settings(options: argparse.Namespace) -> list[str]:
    """The usual model of these data."""
    if MODELS[options.data] == "kgat":
        files = [f"data.{part}={options.data}.{part}.inter" for part in PARTS]
        facts = [f"data.kg={options.data}.kg", f"data.links={options.data}.link"]
        return [*files, *facts, "model.layers=64", *options.set]
    if MODELS[options.data] == "conve":
        return list(options.set)
    length, dropout = ("50", "0.5") if options.data == "beauty" else ("200", "0.2")
    usual = [f"model.max_length={length}", f"model.dropout={dropout}", "model.loss=bce"]
    return [*usual, *options.set]


def run_once(side: int | str, options: argparse.Namespace) -> float:
    """The median examples per second over the epochs that count, added up over trainings apart."""
    many = max(options.devices) if side == APART else 1
    shares = many if side == APART and not options.per_device else 1
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / f"run-{number}" for number in range(many)]
        commands = [command_of(side, options, folder, shares) for folder in folders]
        environment = os.environ | KEEP_PAGES | {"OMP_NUM_THREADS": str(options.threads)}
        running = [
            subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command in commands
        ]
        try:
            for command, process in zip(commands, running, strict=True):
                said, _ = process.communicate()
                if process.returncode:
                    raise SystemExit(f"{' '.join(command)}\n{said}")
        finally:
            for process in running:
                process.kill()  # nothing where it has ended
        return sum(_rate(folder) for folder in folders)


def command_of(
    side: int | str, options: argparse.Namespace, out: Path, shares: int = 1
) -> list[str]:
    """A training of this side; shares: how many divide the batch between them."""
    count = str(options.epochs)
    program = [sys.executable, "-m", "hasten"]
    if side == LAUNCHED:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
        program += ["--master-port", str(port), "-m", "hasten"]
    command = [*program, "train", MODELS[options.data], str(plain_file(options.data))]
    command += ["--out", str(out)]
    command += ["--epochs", count, "--eval-every", count, "--device", options.device]
    size = f"training.batch_size_per_device={options.batch_size}"
    whole = ["--batch-size", f"{options.batch_size // shares}"]
    command += ["--set", size] if options.per_device else whole
    command += ["--threads", str(options.threads)]
    command += ["--set", f"checkpoint.every={count}", "--quiet"]
    command += ["--devices", str(side)] if isinstance(side, int) else []
    for each in settings(options):
        command += ["--set", each]
    return command


def _rate(run: Path) -> float:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    epochs = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    return float(median(record["examples_per_second"] for record in epochs[1:-1]))


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    chosen = result["settings"]
    about = (
        f"{chosen['model']}, batch size {chosen['batch_size']} "
        f"{'for each process' if chosen['per_device'] else 'over all processes'}, "
        f"{chosen['threads']} "
        f"thread(s) a process, {', '.join(chosen['sets'])}."
    )
    lines = ["| processes | examples/s | against 1 |", "| --- | --- | --- |"]
    for name, rate in result["examples_per_second"].items():
        label = LABELS.get(name, name)
        ratio = result["against_one"][name]
        lines.append(
            f"| {label} | {rate['median']:,.0f} ({rate['low']:,.0f}-{rate['high']:,.0f}) "
            f"| {ratio['median']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f}) |"
        )
    return page(result, about, lines)


if __name__ == "__main__":
    raise SystemExit(main())

"""The ConvE guide's table: baseline, memory cleanup, mixed precision, mixed precision + recompute.

    python -m bench.guide_conve
    python -m bench.guide_conve --device cuda --precision fp16
    python -m bench.guide_conve --data umls --batches 256 --rounds 1 --provisional

Every cell is a fresh ``hasten train``; rounds go through the table forwards and backwards in turn.
Seconds an epoch leave out the first and the last; memory is the whole process's peak. Without
--precision the device's fast lower precision is taken; where there is none (a CPU without bf16
instructions) those rows are left out, and the result says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.data import GRAPHS, plain_file
from bench.machine import KEEP_PAGES, load
from bench.results import RESULTS, circumstances, page, write_result
from bench.statistics import spread
from hasten.training.precision import resolve_precision

#: steps between cleanups, as in the guide
CLEANUP = ("--set", "training.cleanup_every=8")
Cell = tuple[str, int]


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fb15k-237", choices=tuple(GRAPHS))
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("bf16", "fp16"), help="of the lower rows")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="the first and the last left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    if options.epochs < 3:
        parser.error("at least three epochs: the first and the last are left out")
    result = measure(options)
    path = write_result(result, markdown(result), results)
    print(markdown(result))
    print(path)
    return 0


def configurations(options: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The rows of the table: their names, and what ``hasten train`` is given."""
    rows: dict[str, tuple[str, ...]] = {
        "fp32": (),
        "fp32 + cleanup": CLEANUP,
        "fp32 + recompute": ("--recompute",),
    }
    lower = options.precision or resolve_precision("auto", torch.device(options.device))
    if lower != "fp32":
        rows[lower] = ("--precision", lower)
        rows[f"{lower} + recompute"] = ("--precision", lower, "--recompute")
    return rows


def measure(options: argparse.Namespace) -> dict[str, Any]:
    rows = configurations(options)
    cells = [(name, batch) for batch in options.batches for name in rows]
    seconds: dict[Cell, list[float]] = {cell: [] for cell in cells}
    memory: dict[Cell, list[float]] = {cell: [] for cell in cells}
    before = load()
    for number in range(options.rounds):
        for cell in cells if number % 2 == 0 else cells[::-1]:
            name, batch = cell
            took, peak = run_once(rows[name], batch, options)
            seconds[cell].append(took)
            memory[cell].append(peak)
            print(f"round {number + 1}, {name}, {batch}: {took:.2f} s", file=sys.stderr)
    return {
        "name": f"guide-conve-{options.data}-{options.device.partition(':')[0]}",
        **circumstances(before, options.provisional),
        "lower_precision": len(rows) > 3,
        "settings": {"data": options.data, "threads": options.threads, "device": options.device},
        "cells": [
            {
                "configuration": name,
                "batch_size": batch,
                "epoch_seconds": spread(seconds[name, batch]),
                "peak_memory_bytes": spread(memory[name, batch]),
            }
            for name, batch in cells
        ],
        "repeat": "python -m bench.guide_conve " + " ".join(sys.argv[1:]),
    }


def run_once(extra: Sequence[str], batch: int, options: argparse.Namespace) -> tuple[float, float]:
    """Median seconds of the epochs that count, and the process's peak memory."""
    count = str(options.epochs)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        command = [sys.executable, "-m", "hasten", "train", "conve", str(plain_file(options.data))]
        command += ["--out", str(out), "--epochs", count, "--eval-every", count, "--quiet"]
        command += ["--batch-size", str(batch), "--device", options.device, "--json"]
        command += ["--threads", str(options.threads), "--set", "data.unknown=keep"]
        command += ["--set", f"checkpoint.every={count}", "--set", "model.loss=1-n"]
        command += ["--set", "model.feature_dropout=0.2", "--set", "model.hidden_dropout=0.3"]
        command += ["--set", "model.channels=32", "--set", "model.group=128"]
        command += ["--set", "model.input_dropout=0.2", *extra]
        done = subprocess.run(
            command,
            env=os.environ | KEEP_PAGES | {"OMP_NUM_THREADS": str(options.threads)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        lines = (out / "metrics.jsonl").read_text().splitlines()
    epochs = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    found = json.loads(done.stdout.splitlines()[-1])
    return median(e["seconds"] for e in epochs[1:-1]), float(found["peak_memory_bytes"])


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    chosen = result["settings"]
    about = f"ConvE, D 200, {chosen['data']}, {chosen['device']}, {chosen['threads']} thread(s)."
    lines = []
    if not result["lower_precision"]:
        lines += ["Without mixed precision: this device has no fast lower precision.", ""]
    lines += ["| configuration | batch | s an epoch | peak MiB |", "| --- | --- | --- | --- |"]
    for cell in result["cells"]:
        took, peak = cell["epoch_seconds"], cell["peak_memory_bytes"]
        lines.append(
            f"| {cell['configuration']} | {cell['batch_size']} | {took['median']:.3g} "
            f"({took['low']:.3g}-{took['high']:.3g}) | {peak['median'] / 2**20:,.0f} |"
        )
    return page(result, about, lines)


if __name__ == "__main__":
    raise SystemExit(main())

"""Memory and time of runs by the number of processes: tables whole on each, and sharded.

    python -m bench.sharded_tables --items 1000000 --width 128 --devices 1 2 3

``hasten train sasrec`` on made events and a validation of 256 users, one thread for each process:
one epoch of sampled softmax with 512 negatives, or with ``--loss ce --max-time 1`` one step of
cross-entropy over all items. Memory is the largest peak of a process, of the whole run with its
checkpoints and evaluations. ``--resume``: of a second epoch that begins from a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

#: events of a user
_EVENTS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tables", nargs="+", default=["never", "always"])
    parser.add_argument("--loss", choices=["sampled-softmax", "ce"], default="sampled-softmax")
    parser.add_argument("--max-time", type=float, help="seconds; by default one epoch")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    print("| processes | tables | peak memory of a process, MiB | training, s |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "events.parquet"
        write_events(file, options.items)
        for devices in options.devices:
            for tables in options.tables if devices > 1 else ("never",):
                found = train(file, Path(scratch) / f"{tables}-{devices}", tables, devices, options)
                kind = "sharded" if found["effective"]["sharded_tables"] else "whole"
                print(
                    f"| {devices} | {kind} | {found['peak_memory_bytes'] / 2**20:,.0f} "
                    f"| {found['seconds']['train']:.1f} |",
                    flush=True,
                )


def write_events(file: Path, items: int) -> None:
    """Twice as many events as items: each item once, and again at random."""
    generator = np.random.default_rng(0)
    item = np.concatenate([generator.permutation(items), generator.integers(0, items, items)])
    user = np.arange(len(item)) // _EVENTS
    columns = {"user_id": user, "item_id": item, "timestamp": np.arange(len(item))}
    parquet.write_table(pa.table(columns), file)


def train(
    file: Path, out: Path, tables: str, devices: int, options: argparse.Namespace
) -> dict[str, Any]:
    """The summary of a run."""
    command = [sys.executable, "-m", "hasten", "train", "sasrec", str(file), "--out", str(out)]
    command += ["--devices", str(devices), "--threads", "1", "--epochs", "1", "--device", "cpu"]
    command += ["--batch-size", str(options.batch_size), "--quiet", "--json", "--set"]
    command += [f"model.width={options.width}", "model.max_length=20", "model.blocks=1"]
    command += [f"model.loss={options.loss}", "training.average=none"]
    command += [f"training.max_time={options.max_time}"] if options.max_time else []
    command += ["model.negatives=512"] if options.loss != "ce" else []
    command += [f"training.shard_tables={tables}", "evaluation.users=256", "evaluation.test=false"]
    found = summary_of(command)
    if options.resume:
        again = [sys.executable, "-m", "hasten", "resume", str(out), "--epochs", "2", "--json"]
        found = summary_of([*again, "--quiet", "--devices", str(devices)])
    return found


def summary_of(command: list[str]) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()

"""Memory and time of runs by the number of processes: tables whole on each, and sharded.

    python -m bench.sharded_tables --items 1000000 --width 128 --devices 1 2 3

``hasten train sasrec`` on made events, one epoch of sampled softmax with 512 negatives and a
validation of 256 users, one thread for each process. Memory is the largest peak of a process, of
the whole run with its checkpoints and evaluations.
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
    options = parser.parse_args()
    print("| processes | tables | peak memory of a process, MiB | training, s |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "events.parquet"
        write_events(file, options.items)
        for devices in options.devices:
            for tables in ("never", "always") if devices > 1 else ("never",):
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
    command += ["model.loss=sampled-softmax", "model.negatives=512", "training.average=none"]
    command += [f"training.shard_tables={tables}", "evaluation.users=256", "evaluation.test=false"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()

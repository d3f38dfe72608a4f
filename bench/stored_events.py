"""Training from a store of events under a limit on the address space, and from memory.

    python -m bench.stored_events --events 100000000 --limit 4.0

Made events of events / 20 users and events / 100 items, in the order of time, are written to
Parquet and prepared. Then SASRec trains for one epoch, with an evaluation of sampled users: from
the store under ``RLIMIT_AS``; from the file under the same limit, which must fail if the data in
memory are larger; from the file without a limit. The last would rank all users at its end, which a
store does not, so it is ended once its last checkpoint is there. Weights and moments of the first
and the last must be the same bytes. Seconds are CPU seconds of all threads; peaks are those of the
address space and of resident pages. Pages of mapped files among them can be dropped by the system.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from hasten.testing import fingerprint

#: of an event in memory: its columns, and the histories of the training part (docs/scaling.md)
BYTES_PER_EVENT = 29 + 16
_ROWS = 5_000_000
_MODEL = [
    *("model.width=16", "model.blocks=1", "model.max_length=20", "model.loss=sampled-softmax"),
    *("training.average=none", "evaluation.users=1000", "evaluation.test=false"),
]


@dataclass(frozen=True)
class Outcome:
    """What a command did: bytes at its peaks, CPU seconds, exit status, last line of its errors."""

    address_space: int
    resident: int
    mapped: int
    seconds: float
    status: int
    message: str


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--limit", type=float, default=4.0, help="GB of address space")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--skip-failing", action="store_true", help="no run from the file under it")
    options = parser.parse_args()
    limit = int(options.limit * 1e9)
    print(
        f"{options.events:,} events: {options.events * BYTES_PER_EVENT / 1e9:.2f} GB in memory; "
        f"limit {options.limit:g} GB of address space\n"
    )
    print("| what | limited | address space, GB | resident, GB (mapped) | CPU s | outcome |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file, store = folder / "events.parquet", folder / "events.store"
        write_events(file, options.events)
        prepare = ["data", "prepare", str(file), "--out", str(store)]
        report("data prepare", run(prepare, limit), limited=True)
        common = ["--epochs", "1", "--threads", "1", "--device", "cpu", "--quiet", "--batch-size"]
        common += [str(options.batch_size), "--set", *_MODEL]

        command = ["train", "sasrec", *common]
        return compare(command, store, file, limit, skip_failing=options.skip_failing)


def compare(
    command: list[str], store: Path, file: Path, limit: int, *, skip_failing: bool = False
) -> int:
    """Train from the store and the file under the limit, and from the file without; report all.

    command: what ``hasten`` is given, without the data. Returns 0 if weights and moments of the
    first and the last run are the same bytes, else 1.
    """
    folder = store.parent

    def train(source: Path, out: str, limit: int | None) -> None:
        done = None if limit is not None else folder / out / "final"
        arguments = [*command[:2], str(source), "--out", str(folder / out), *command[2:]]
        report(
            f"train from the {source.suffix[1:]}", run(arguments, limit, done), limited=bool(limit)
        )

    train(store, "stored", limit)
    if not skip_failing:
        train(file, "failed", limit)
    train(file, "memory", None)
    digests = [fingerprint(folder / name) for name in ("stored", "memory")]
    print(f"\nSHA-256 of weights and moments: {digests[0][:16]} and {digests[1][:16]}")
    return 0 if digests[0] == digests[1] else 1


def write_events(file: Path, events: int, items: int = 0) -> None:
    """Users uniform, items skewed (the third power of a uniform number), times ascending.

    items: 0 for events / 100.
    """
    generator = np.random.default_rng(0)
    schema = pa.schema([(name, pa.int64()) for name in ("user_id", "item_id", "timestamp")])
    with parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, events, _ROWS):
            count = min(_ROWS, events - start)
            user = generator.integers(0, events // 20, count)
            item = ((items or events // 100) * generator.random(count) ** 3).astype(np.int64)
            time_ = 1_400_000_000 + np.arange(start, start + count)
            writer.write_table(pa.table([user, item, time_], schema=schema))


def run(arguments: list[str], limit: int | None, done: Path | None = None) -> Outcome:
    """Run ``hasten`` with these arguments, in an address space of at most ``limit`` bytes.

    done: end it when this folder exists, which is written at once.
    """
    command = [sys.executable, "-m", "hasten", *arguments]
    if limit is not None:
        command = ["sh", "-c", f'ulimit -v {limit // 1024}; exec "$@"', "sh", *command]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        peaks = {"VmPeak": 0, "VmHWM": 0, "RssFile": 0}
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            _raise_peaks(process.pid, peaks)
            if done is not None and done.exists():
                process.terminate()
                done = None
            time.sleep(0.1)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    return Outcome(
        peaks["VmPeak"],
        max(peaks["VmHWM"], used.ru_maxrss * 1024),
        peaks["RssFile"],
        used.ru_utime + used.ru_stime,
        process.returncode,
        lines[-1] if lines else "",
    )


def _raise_peaks(process: int, peaks: dict[str, int]) -> None:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it has ended
        return
    for line in lines:
        name, _, value = line.partition(":")
        if name in peaks:
            peaks[name] = max(peaks[name], int(value.split()[0]) * 1024)


def report(what: str, found: Outcome, *, limited: bool) -> None:
    """Print the line of a command."""
    outcome = f"status {found.status}: {found.message}"
    if found.status == 0:
        outcome = "done"
    elif found.status == 128 + signal.SIGTERM:
        outcome = "ended after its last checkpoint"
    print(
        f"| {what} | {'yes' if limited else 'no'} | {found.address_space / 1e9:.2f} "
        f"| {found.resident / 1e9:.2f} ({found.mapped / 1e9:.2f}) | {found.seconds:.0f} "
        f"| {outcome} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())

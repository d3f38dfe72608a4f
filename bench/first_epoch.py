"""The wall time of the first epoch with its evaluation, as the model comes, on made events.

    python -m bench.first_epoch --events 10000000

Made events (:mod:`bench.stored_events`) of events / 20 users and events / 50 items in a Parquet
file. ``hasten train MODEL FILE --epochs 1`` without other options, as a fresh process: reading,
splitting, one epoch, its validation and the checkpoint. The evaluations of all users at the end of
a run are in the whole command, and not in the first epoch. With --skip-test the process is ended
before them, once its last checkpoint is there.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench.machine import load
from bench.results import RESULTS, circumstances, page, write_result
from bench.stored_events import run, write_events


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--model", default="sasrec")
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    parser.add_argument("--skip-test", action="store_true", help="no evaluations of all users")
    options = parser.parse_args()
    before = load()
    with tempfile.TemporaryDirectory() as scratch:
        file, out = Path(scratch) / "events.parquet", Path(scratch) / "run"
        write_events(file, options.events, items=options.events // 50)
        command = ["train", options.model, str(file), "--epochs", "1", "--quiet"]
        started = time.time()
        last = out / "final" if options.skip_test else None
        done = run([*command, "--out", str(out)], None, last)
        whole = time.time() - started
        if done.status and not (options.skip_test and done.status == 128 + signal.SIGTERM):
            raise SystemExit(done.message)
        lines = (out / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        epoch = next(r["seconds"] for r in records if r["kind"] == "train")
        checkpoint = max(path.stat().st_mtime for path in (out / "checkpoints").rglob("*"))
    result = {
        "name": f"first-epoch-{options.model}-{options.events}",
        **circumstances(before, options.provisional),
        "settings": {
            "model": options.model,
            "events": options.events,
            "skip_test": options.skip_test,
        },
        "seconds": {"epoch": epoch, "to_checkpoint": checkpoint - started, "command": whole},
        "cpu_seconds": done.seconds,
        "peak_bytes": done.resident,
        "records": records,
        "repeat": "python -m bench.first_epoch " + " ".join(sys.argv[1:]),
    }
    rest = "without" if options.skip_test else "with"
    body = [
        "| what | seconds |",
        "| --- | --- |",
        f"| training of the epoch | {epoch:.0f} |",
        f"| until the checkpoint, with reading and validation | {checkpoint - started:.0f} |",
        f"| whole command, {rest} the evaluations of all users | {whole:.0f} |",
        "",
        f"{done.seconds:.0f} CPU seconds, peak {done.resident / 1e9:.2f} GB resident.",
    ]
    about = f"{options.model}, {options.events:,} made events, no options."
    print(write_result(result, page(result, about, body), RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())

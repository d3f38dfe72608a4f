"""The MMGCN guide's table: its baseline, each of its switches alone, and all of them together.

    python -m bench.guide_modal
    python -m bench.guide_modal --data tiktok --epochs 12
    python -m bench.guide_modal --data tiktok --epochs 3 --rounds 1 --provisional

Every row is a fresh ``hasten train``; rounds go through the table forwards and backwards in turn.
Seconds an epoch are the median of the epochs' training, the first left out, and the evaluations'
share of all epochs; memory is the whole process's peak. Recall and NDCG are those on validation
after the last epoch, so every row has seen the same number of epochs. ``plain`` is the same
training in plain PyTorch with the baseline's batches, its steps alone, extrapolated.
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

import numpy as np

from bench.baby_features import events_of, features_of
from bench.data import plain_file
from bench.machine import KEEP_PAGES, load
from bench.results import RESULTS, circumstances, page, write_result
from bench.statistics import spread

#: what the guide starts from, and what it switches
BASELINE = {
    "batch": ("--batch-size", "2048"),
    "compile": ("--compile", "off"),
    "every": ("--eval-every", "1"),
    "metrics": ("--metrics", "recall,ndcg,precision,map", "--topk", "5,10,20,50"),
}
SWITCHES = {
    "batch": ("--batch-size", "4096"),
    "compile": ("--compile", "auto"),
    "every": ("--eval-every", "3"),
    "metrics": ("--metrics", "recall,ndcg", "--topk", "20"),
}
ROWS: dict[str, frozenset[str]] = {
    "baseline": frozenset(),
    "batch 4096": frozenset({"batch"}),
    "compile": frozenset({"compile"}),
    "evaluation every 3": frozenset({"every"}),
    "Recall and NDCG at 20": frozenset({"metrics"}),
    "all of them": frozenset(SWITCHES),
}


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="baby", choices=("baby", "tiktok"))
    parser.add_argument("--model", default="mmgcn", choices=("mmgcn", "dragon"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="a multiple of three")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", nargs="+", choices=tuple(ROWS), help="of the table; none: all")
    parser.add_argument("--plain-steps", type=int, default=4, help="0: without the plain side")
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    if options.epochs < 3 or options.epochs % 3:
        parser.error("--epochs must be a multiple of three: evaluations come every third")
    if options.rows and "baseline" not in options.rows:
        parser.error("--rows: every other row is compared with the baseline, so name it too")
    result = measure(options)
    path = write_result(result, markdown(result), results)
    print(markdown(result))
    print(path)
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    chosen = [name for name in ROWS if not options.rows or name in options.rows]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    before = load()
    plain = plain_epoch(options) if options.plain_steps else None
    with tempfile.TemporaryDirectory() as scratch:
        data = folder_of(options.data, Path(scratch) / "data")
        for number in range(options.rounds):
            for name in chosen if number % 2 == 0 else reversed(chosen):
                row = run_once(ROWS[name], data, Path(scratch) / f"{number}-{name}", options)
                found[name].append(row)
                print(f"round {number + 1}, {name}: {row['epoch_seconds']:.2f} s", file=sys.stderr)
    kind = options.device.partition(":")[0]
    return {
        "name": f"guide-{options.model}-{options.data}-{kind}",
        **circumstances(before, options.provisional),
        "settings": {
            name: getattr(options, name)
            for name in ("data", "model", "device", "threads", "epochs", "rounds")
        },
        "plain_epoch_seconds": plain,
        "rows": [{"configuration": name, **summary(rows)} for name, rows in found.items()],
        "repeat": "python -m bench.guide_modal " + " ".join(sys.argv[1:]),
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What of the rounds of one row is kept; quality is the same in all of them."""
    timed = ("epoch_seconds", "train_seconds", "evaluate_seconds", "peak_memory_bytes")
    return {
        **{name: spread([row[name] for row in rows]) for name in timed},
        "valid": rows[0]["valid"],
        "compile": rows[0]["compile"],
    }


def folder_of(name: str, scratch: Path) -> Path:
    """A folder ``hasten train`` reads; Baby's events get features drawn from a seed."""
    if name == "tiktok":
        return plain_file(name)
    scratch.mkdir()
    user, item, part = events_of(name)
    lines = zip(user.tolist(), item.tolist(), part.tolist(), strict=True)
    text = "".join(f"{u}\t{i}\t{p}\n" for u, i, p in lines)
    (scratch / f"{name}.inter").write_text(f"userID\titemID\tx_label\n{text}")
    for modality, values in features_of(name).items():
        np.save(scratch / f"{modality}_feat.npy", values)
    return scratch


def run_once(
    switched: frozenset[str], data: Path, out: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """One row: seconds an epoch, peak memory, and what it reached."""
    count = str(options.epochs)
    command = [sys.executable, "-m", "hasten", "train", options.model, str(data)]
    command += ["--out", str(out), "--epochs", count, "--device", options.device]
    command += ["--threads", str(options.threads), "--json", "--quiet"]
    command += ["--set", f"checkpoint.every={count}"]
    if options.model == "mmgcn":
        command += ["--set", "model.ids=trainable"]
    for name, before in BASELINE.items():
        command += SWITCHES[name] if name in switched else before
    found = json.loads(output_of(command, options.threads).splitlines()[-1])
    lines = (out / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    train = median([r["seconds"] for r in records if r["kind"] == "train"][1:])
    evaluate = found["seconds"]["evaluate"] / options.epochs
    last = [r for r in records if r["kind"] == "valid"][-1]
    return {
        "epoch_seconds": train + evaluate,
        "train_seconds": train,
        "evaluate_seconds": evaluate,
        "peak_memory_bytes": float(found["peak_memory_bytes"]),
        "valid": {name: last[name] for name in ("recall@20", "ndcg@20")},
        "compile": said_of(found["effective"]["compile"]),
    }


def said_of(reports: Any) -> str:
    """What compiling did, in words."""
    if reports == "off":
        return "off"
    (report,) = reports
    kept = "kept" if report["in_effect"] else "not kept"
    if report["compiled_ms"] is None:
        return f"{kept}: {report['note']}"
    eager, compiled = report["eager_ms"], report["compiled_ms"]
    return f"{kept}: {eager:.0f} ms a step without, {compiled:.0f} with"


def plain_epoch(options: argparse.Namespace) -> float:
    """Seconds of an epoch of the plain formulation, its steps alone."""
    command = [sys.executable, "-m", "bench.modal_side", "--how", "plain", "--batch-size", "2048"]
    command += ["--model", options.model, "--data", options.data]
    command += ["--steps", str(options.plain_steps), "--threads", str(options.threads)]
    report = json.loads(output_of(command, options.threads).splitlines()[-1])
    return float(report["epoch_seconds"])


def output_of(command: Sequence[str], threads: int) -> str:
    done = subprocess.run(
        command,
        env=os.environ | KEEP_PAGES | {"OMP_NUM_THREADS": str(threads)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    chosen = result["settings"]
    about = (
        f"{chosen['model'].upper()}, {chosen['data']}, {chosen['device']}, "
        f"{chosen['threads']} thread(s), {chosen['epochs']} epochs, {chosen['rounds']} round(s)."
    )
    lines = []
    if result["plain_epoch_seconds"] is not None:
        lines += [
            f"Plain PyTorch, steps alone: {result['plain_epoch_seconds']:.3g} s an epoch.",
            "",
        ]
    titles = ["configuration", "s an epoch", "of it evaluation", "times the baseline", "peak MiB"]
    titles += ["Recall@20", "NDCG@20"]
    lines += [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    whole = result["rows"][0]["epoch_seconds"]["median"]
    for row in result["rows"]:
        took, peak = row["epoch_seconds"]["median"], row["peak_memory_bytes"]["median"]
        name = row["configuration"]
        cells = (
            f"{name} ({row['compile']})" if name == "compile" else name,
            f"{took:.3g}",
            f"{row['evaluate_seconds']['median']:.3g}",
            f"{whole / took:.2f}",
            f"{peak / 2**20:,.0f}",
            f"{row['valid']['recall@20']:.4f}",
            f"{row['valid']['ndcg@20']:.4f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return page(result, about, lines)


if __name__ == "__main__":
    raise SystemExit(main())

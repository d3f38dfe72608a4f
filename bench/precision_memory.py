"""Mixed precision and recompute: peak memory, activations and speed of the models that have both.

    python -m bench.precision_memory
    python -m bench.precision_memory --models conve --rounds 1 --provisional

Every cell is a fresh process that takes real steps (``hasten plan``). Peak: resident memory of the
process until the end of training (VmHWM). Activations: bytes that a step of a whole batch keeps for
the backward pass, in the phase that keeps most. Rounds go through the table forwards and backwards
in turn. ``make docs`` writes the newest result into the guide of ConvE.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bench.data import plain_file
from bench.machine import load
from bench.results import RESULTS, circumstances, page, write_result
from bench.statistics import spread
from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.planning.memory_parts import MemoryParts, SavedActivations
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision, resolve_precision
from hasten.training.step import OptimizerStep

#: reference data of each model, and the recipe for them
MODELS = {
    "sasrec": ("ml-1m", "best"),
    "tisasrec": ("ml-1m", "20-epochs"),
    "conve": ("fb15k-237", "best"),
    "kgat": ("ml-100k-facts", "best"),
    "mmgcn": ("tiktok", "best"),
    "dragon": ("tiktok", "best"),
    "hgt": ("redda-k", "best"),
}
#: settings that differ from the recipe: large batches, as in the guide; all of KGAT's layers
MORE = {
    "conve": "training.batch_size=1024",
    "kgat": "model.layers=[64,32,16]",
    "mmgcn": "model.ids=trainable",
}
_LOW, _AGAIN = "training.precision=bf16", "training.recompute=true"
ROWS = {
    "baseline": (),
    "mixed precision (bf16)": (_LOW,),
    "recompute": (_AGAIN,),
    "both": (_LOW, _AGAIN),
}
QUANTITIES = ("peak_bytes", "activation_bytes", "epoch_seconds")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    cells = [(model, row) for model in options.models for row in ROWS]
    found: dict[tuple[str, str], list[dict[str, float]]] = {cell: [] for cell in cells}
    before = load()
    for number in range(options.rounds):
        for model, row in cells if number % 2 == 0 else cells[::-1]:
            found[model, row].append(run_once(model, ROWS[row], options.threads))
            print(f"round {number + 1}, {model}, {row}: {found[model, row][-1]}", file=sys.stderr)
    return {
        "name": "precision-memory",
        **circumstances(before, options.provisional),
        "settings": {"threads": options.threads, "rounds": options.rounds},
        "cells": [
            {
                "model": model,
                "data": MODELS[model][0],
                "configuration": row,
                **{name: spread([each[name] for each in runs]) for name in QUANTITIES},
            }
            for (model, row), runs in found.items()
        ],
        "repeat": "python -m bench.precision_memory " + " ".join(sys.argv[1:]),
    }


def run_once(model: str, extra: Sequence[str], threads: int) -> dict[str, float]:
    """Peak and activations in bytes, and seconds per epoch, of a fresh process."""
    data, recipe = MODELS[model]
    sets = [MORE[model], *extra] if model in MORE else list(extra)
    command = [sys.executable, "-m", "hasten", "plan", model, str(plain_file(data)), "--json"]
    command += ["--recipe", f"{data}/{recipe}", "--threads", str(threads)]
    command += [f"--set={each}" for each in sets]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    plan = json.loads(done.stdout.splitlines()[-1])
    return {
        "peak_bytes": float(plan["stages"]["training"]),
        "activation_bytes": float(kept_bytes(model, tuple(sets))),
        "epoch_seconds": float(plan["seconds"]["epoch"]),
    }


@cache
def kept_bytes(model: str, sets: tuple[str, ...]) -> int:
    """The activations of the second step of each phase; the most of all phases."""
    data, recipe = MODELS[model]
    path, cpu = str(plain_file(data)), torch.device("cpu")
    config = build_config(model, path, None, sets, {"recipe": f"{data}/{recipe}"})
    dataset = load_data(config, None)
    built = build_model(config, dataset, cpu).train()
    precision, most = Precision(resolve_precision(config.training.precision, cpu), cpu), 0
    for number, phase in enumerate(built.phases(dataset, config.training)):
        step = OptimizerStep(phase, number, config.training, precision, DataParallelRank(), cpu)
        phase.start_epoch(config.seed, 0)
        step(phase.plan(config.seed, 0, 0), 1e-3)  # computes graphs and constants
        parts = MemoryParts()
        parts.count([dataset, built, phase, step.optimizer])
        with SavedActivations(parts) as saved:
            step(phase.plan(config.seed, 0, 1 % phase.steps()), 1e-3)
        most = max(most, saved.peak)
    return most


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    return page(result, _about(result), table(result))


def _about(result: dict[str, Any]) -> str:
    chosen = result["settings"]
    return f"CPU, {chosen['threads']} thread(s), {chosen['rounds']} round(s), medians."


def table(result: dict[str, Any]) -> list[str]:
    """The lines of a table with a row for each cell; ratios are to the model's baseline."""
    titles = (
        "| model, data | configuration | peak MiB | ratio | activations MiB | ratio | s/epoch |"
    )
    lines = [titles, "| --- " * 7 + "|"]
    first = (1.0, 1.0)
    for cell in result["cells"]:
        peak, kept, took = (cell[name]["median"] for name in QUANTITIES)
        first = (peak, kept) if cell["configuration"] == "baseline" else first
        lines.append(
            f"| {cell['model']}, {cell['data']} | {cell['configuration']} | {peak / 2**20:,.0f} "
            f"| {peak / first[0]:.2f} | {kept / 2**20:,.1f} | {kept / first[1]:.2f} | {took:.3g} |"
        )
    return lines


def memory_table(folder: str, results: Path = RESULTS) -> str:
    """The newest result of each model for a page. folder: where the result files are."""
    files = results.glob("*-precision-memory*.json")
    records = [(json.loads(file.read_text()), file.stem) for file in files]
    records.sort(key=lambda record: (record[0]["date"], record[0]["number"]))
    newest = {cell["model"]: record for record in records for cell in record[0]["cells"]}
    if not newest:
        return "No result yet."
    lines = ["Peak memory of `hasten plan` in a fresh process, with the recipe of each data set."]
    cells: list[dict[str, Any]] = []
    for model in (each for each in MODELS if each in newest):
        result, name = newest[model]
        quiet = ", provisional: do not compare the seconds" if result["provisional"] else ""
        lines.append(f"`{model}`: {_about(result)[:-1]}{quiet} ([result]({folder}/{name}.md)).")
        cells += [cell for cell in result["cells"] if cell["model"] == model]
    return "\n".join(["\n".join(lines), "", *table({"cells": cells})])


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=tuple(MODELS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    result = measure(options)
    text = markdown(result)
    path = write_result(result, text, results)
    print(text)
    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

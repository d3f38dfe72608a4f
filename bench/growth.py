"""Processor seconds and memory of loading, training and evaluating made data of growing size.

    python -m bench.growth sasrec complex --rows 30000 100000 300000 1000000

A fresh process of one thread for each model and size, with the data of :mod:`bench.loading` and the
options that a run without options has. Before it is measured, it does the same with few rows, which
imports everything. build: the model, its phases, and what the first step of each takes more than
others (graphs that are built when they are first needed). epoch: the mean of a few steps of each
phase, after two of them, times its steps, and what follows the last one. evaluation: the mean of a
few tiles of queries, times the tiles of a validation while training. Both are computed from
measured pieces, not run to their end. Models without gradient steps have the seconds of their fit.
The exponent is the slope of a least-squares line through the logarithms: 1 is linear growth in the
rows. The first size that takes more processor seconds than ``--limit`` ends those of its model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from bench.loading import made_for

WARM_UP, STEPS, TILES = 2, 6, 2
#: of the run before the measured one
_FEW_ROWS = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=240, help="processor seconds of a size")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        measure(options.models[0], _FEW_ROWS)
        print(json.dumps(measure(options.models[0], options.rows[0])), flush=True)
        return
    header: list[str] = []
    for model in options.models:
        measured: dict[int, dict[str, float]] = {}
        for rows in options.rows:
            found = _side(model, rows, options.limit)
            if found is None:
                print(f"`{model}`, {rows:,} rows: more than {options.limit} s", file=sys.stderr)
                break
            if header != list(found):
                header = list(found)
                units = ("MiB" if name == "peak" else "s" for name in header)
                titles = (f"{name}, {unit}" for name, unit in zip(header, units, strict=True))
                print(f"| model | rows | {' | '.join(titles)} |")
                print("| --- " * (len(header) + 2) + "|")
            cells = " | ".join(f"{value:.3g}" for value in found.values())
            print(f"| `{model}` | {rows:,} | {cells} |", flush=True)
            measured[rows] = found
        if len(measured) > 1:
            slopes = (
                exponent(list(measured), [each[name] for each in measured.values()])
                for name in header
            )
            print(f"| | exponent | {' | '.join(slopes)} |", flush=True)


def exponent(sizes: list[int], values: list[float]) -> str:
    """The slope of the line through the logarithms; empty if the clock showed 0 seconds."""
    return f"{np.polyfit(np.log(sizes), np.log(values), 1)[0]:.2f}" if min(values) > 0 else ""


def _side(model: str, rows: int, limit: int) -> dict[str, float] | None:
    """What a process of its own measured; None: it was ended at the limit."""
    command = [sys.executable, "-m", "bench.growth", model, "--rows", str(rows), "--side"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))

    with tempfile.TemporaryDirectory() as cache:  # graphs of an earlier run would be read
        try:
            output = subprocess.check_output(
                command, env={**os.environ, "HASTEN_CACHE": cache}, preexec_fn=limited
            )
        except subprocess.CalledProcessError as error:
            if error.returncode == -signal.SIGXCPU:
                return None
            raise
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def measure(model: str, rows: int) -> dict[str, float]:
    """What one size takes, in this process."""
    import torch

    from hasten.build import build_model, load_data
    from hasten.config_loading.build import build_config
    from hasten.config_loading.data_defaults import with_data_defaults
    from hasten.data.tables import VALID
    from hasten.evaluation.protocols import ranking_task
    from hasten.evaluation.query_tiles import TILE_ROWS
    from hasten.evaluation.ranker import evaluate
    from hasten.evaluation.validation_sample import validation_task
    from hasten.registry import load_model
    from hasten.training.gradient_accumulation import DataParallelRank
    from hasten.training.precision import Precision
    from hasten.training.step import OptimizerStep

    torch.set_num_threads(1)
    cpu, clock = torch.device("cpu"), time.process_time
    path, given = made_for(load_model(model).reads, rows)
    config = build_config(model, str(path), flags=given)
    begin = clock()
    dataset = load_data(config, None)
    found = {"load": clock() - begin}
    config, _ = with_data_defaults(config, dataset)
    begin = clock()
    net = build_model(config, dataset, cpu, for_training=True).train()
    phases = net.phases(dataset, config.training)
    build = clock() - begin
    if phases:
        step_seconds = epoch = 0.0
        for number, phase in enumerate(phases):
            step = OptimizerStep(
                phase, number, config.training, Precision("fp32", cpu), DataParallelRank(), cpu
            )
            phase.start_epoch(0, 0)
            taken: list[float] = []
            for index in range(min(WARM_UP + STEPS, phase.steps())):
                begin = clock()
                step(phase.plan(0, 0, index), 1e-3)
                taken.append(clock() - begin)
            each = float(np.mean(taken[min(WARM_UP, len(taken) - 1) :]))
            build += max(0.0, taken[0] - each)
            begin = clock()
            step.optimizer.flush()
            phase.end_epoch(0, 0)
            step_seconds += each
            epoch += each * phase.steps() + clock() - begin
        found |= {"build": build, "step": step_seconds, "epoch": epoch}
    else:
        begin = clock()
        net.fit(dataset)
        found["fit"] = build + clock() - begin
    net.eval()
    task = validation_task(ranking_task(dataset, VALID, config.evaluation, 0), config.evaluation, 0)
    tiles = -(-len(task.queries) // TILE_ROWS)
    calls: list[float] = []

    def stop() -> bool:
        calls.append(clock())
        return len(calls) > TILES

    begin = clock()
    evaluate(net, task, config.evaluation.metrics, device=cpu, stop=stop)
    found["evaluation"] = (calls[-1] - calls[0]) / max(1, len(calls) - 1) * tiles
    if len(calls) == 1:  # fewer queries than a tile
        found["evaluation"] = clock() - begin
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


if __name__ == "__main__":
    main()

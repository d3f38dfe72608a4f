"""Processor seconds and memory of loading, training and evaluating made data of growing size.

    python -m bench.growth sasrec complex --rows 30000 100000 300000 1000000

A fresh process of one thread for each model and size, with the data of :mod:`bench.loading` and the
options that a run without options has. epoch: the mean of a few steps of each phase, after two of
them, times its steps; an evaluation: the mean of a few tiles of queries, times the tiles of a
validation while training. Both are computed from measured pieces, not run to their end. The
exponent is the slope of a least-squares line through the logarithms: 1 is linear growth in the
rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from bench.loading import made

KINDS = {"complex": "triples", "conve": "triples", "distmult": "triples", "hgt": "typed"}
#: what is fitted, and its unit
MEASURED = {"load": "s", "step": "s", "epoch": "s", "evaluation": "s", "peak": "MiB"}
WARM_UP, STEPS, TILES = 2, 6, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", required=True)
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.models[0], options.rows[0])), flush=True)
        return
    print("| model | rows | " + " | ".join(f"{n}, {unit}" for n, unit in MEASURED.items()) + " |")
    print("| --- " * (len(MEASURED) + 2) + "|")
    for model in options.models:
        found = [_side(model, rows) for rows in options.rows]
        for rows, each in zip(options.rows, found, strict=True):
            cells = " | ".join(f"{each[name]:.3g}" for name in MEASURED)
            print(f"| `{model}` | {rows:,} | {cells} |", flush=True)
        slopes = (exponent(options.rows, [each[name] for each in found]) for name in MEASURED)
        print("| | exponent | " + " | ".join(f"{slope:.2f}" for slope in slopes) + " |")


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of the line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _side(model: str, rows: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.growth", model, "--rows", str(rows), "--side"]
    found: dict[str, float] = json.loads(subprocess.check_output(command).splitlines()[-1])
    return found


def measure(model: str, rows: int) -> dict[str, float]:
    """What one size takes, in this process."""
    path = made(KINDS.get(model, "plain"), rows)

    import torch

    from hasten.build import build_model, load_data
    from hasten.config_loading.build import build_config
    from hasten.config_loading.data_defaults import with_data_defaults
    from hasten.data.tables import VALID
    from hasten.evaluation.protocols import ranking_task
    from hasten.evaluation.query_tiles import TILE_ROWS
    from hasten.evaluation.ranker import evaluate
    from hasten.evaluation.validation_sample import while_training
    from hasten.training.precision import Precision
    from hasten.training.step import DataShard, OptimizerStep

    torch.set_num_threads(1)
    cpu, clock = torch.device("cpu"), time.process_time
    config = build_config(model, str(path))
    for _ in range(2):  # the first time imports what reads the data
        begin = clock()
        dataset = load_data(config, None)
        load = clock() - begin
    config, _ = with_data_defaults(config, dataset)
    net = build_model(config, dataset, cpu, for_training=True).train()
    step_seconds = epoch = 0.0
    for number, phase in enumerate(net.phases(dataset, config.training)):
        step = OptimizerStep(
            phase, number, config.training, Precision("fp32", cpu), DataShard(), cpu
        )
        phase.start_epoch(0, 0)
        count = min(WARM_UP + STEPS, phase.steps())
        for index in range(count):
            if index == min(WARM_UP, count - 1):
                begin = clock()
            step(phase.plan(0, 0, index), 1e-3)
        each = (clock() - begin) / (count - min(WARM_UP, count - 1))
        step_seconds += each
        epoch += each * phase.steps()
    task = while_training(ranking_task(dataset, VALID, config.evaluation, 0), config.evaluation, 0)
    tiles = -(-len(task.queries) // TILE_ROWS)
    calls: list[float] = []

    def stop() -> bool:
        calls.append(clock())
        return len(calls) > TILES

    begin = clock()
    evaluate(net, task, config.evaluation.metrics, device=cpu, stop=stop)
    evaluation = (calls[-1] - calls[0]) / max(1, len(calls) - 1) * tiles
    if len(calls) == 1:  # fewer queries than a tile
        evaluation = clock() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "load": load, "step": step_seconds, "epoch": epoch, "evaluation": evaluation, "peak": peak,
    }  # fmt: skip


if __name__ == "__main__":
    main()

"""Seconds and peak memory of a step of SASRec by the number of items.

    python -m bench.large_catalog
    python -m bench.large_catalog --items 10000 --loss ce

Histories of uniformly drawn items, each size in a fresh process. A step has the targets of 128
users, 9 each on average. Without the last step of an epoch, which updates every row that the steps
before left out: its seconds stand beside. The model, with two moments of each weight, is most of
the peak.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import Side, run_side
from bench.machine import load
from bench.report import peak_memory_bytes
from bench.results import RESULTS, circumstances, page, with_interval, write_result
from bench.statistics import spread

ITEMS = (10_000, 100_000, 1_000_000)
USERS_PER_STEP, LENGTH, WARM_UP = 128, 50, 20


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, nargs="+", default=list(ITEMS))
    parser.add_argument("--loss", default="sampled-softmax")
    parser.add_argument("--sampling", default="uniform", choices=("uniform", "in-batch", "mixed"))
    parser.add_argument("--negatives", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300, help="that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.side:
        print(json.dumps(time_steps(options)), flush=True)
        return 0
    chosen, before = vars(options).copy(), load()
    del chosen["side"], chosen["no_record"]
    result = {
        "name": f"large-catalogue-{options.loss}",
        **circumstances(before, chosen.pop("provisional")),
        "settings": chosen,
        "lines": measure(options),
        "repeat": "python -m bench.large_catalog " + " ".join(sys.argv[1:]),
    }
    print(markdown(result))
    if not options.no_record:
        print(write_result(result, markdown(result), results))
    return 0


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A line for each number of items."""
    reports: dict[int, list[dict[str, Any]]] = {items: [] for items in options.items}
    for number in range(options.rounds):
        for items in options.items if number % 2 == 0 else reversed(options.items):
            names = ("loss", "sampling", "negatives", "width", "steps")
            given = " ".join(f"--{name} {getattr(options, name)}" for name in names)
            command = f"python -m bench.large_catalog --side --items {items} {given}"
            side = Side(f"{items} items", f"{command} --threads {{threads}}")
            reports[items].append(run_side(side, options.threads, True, 1800))
            print(f"{items}: {reports[items][-1]['step_seconds']:.4f} s", file=sys.stderr)
    first = [report["step_seconds"] for report in reports[options.items[0]]]
    return [
        {
            "items": items,
            "step_seconds": spread([report["step_seconds"] for report in found]),
            "against_first": spread(
                [each["step_seconds"] / one for each, one in zip(found, first, strict=True)]
            ),
            "last_step_seconds": spread([report["last_step_seconds"] for report in found]),
            "peak_memory_bytes": max(report["peak_memory_bytes"] for report in found),
            "model_bytes": found[0]["model_bytes"],
            "optimizer": found[0]["optimizer"],
        }
        for items, found in reports.items()
    ]


def time_steps(options: argparse.Namespace) -> dict[str, Any]:
    """The mean seconds of the steps of an epoch, and those of its last."""
    import numpy as np
    import torch

    from hasten.config import TrainingOptions
    from hasten.data.tables import Histories
    from hasten.models.interface import Sizes
    from hasten.models.sequential.sasrec import SASRec, SASRecOptions
    from hasten.training.gradient_accumulation import DataParallelRank
    from hasten.training.precision import Precision
    from hasten.training.step import OptimizerStep

    (items,), device = options.items, torch.device("cpu")
    torch.set_num_threads(options.threads)
    generator = np.random.default_rng(0)
    users = USERS_PER_STEP * (WARM_UP + options.steps + 1)
    lengths = np.clip(generator.geometric(1 / 8, users) + 2, 3, LENGTH + 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    histories = Histories(offsets, generator.integers(0, items, int(offsets[-1])))
    given: dict[str, Any] = {"loss": options.loss, "width": options.width, "max_length": LENGTH}
    if options.loss != "ce":
        given["negatives"] = options.negatives
    if options.loss == "sampled-softmax":
        given["sampling"] = options.sampling
    torch.manual_seed(0)
    model = SASRec(SASRecOptions(**given), Sizes(users=users, items=items)).train()
    training = TrainingOptions(batch_size=USERS_PER_STEP, betas=(0.9, 0.98), clip_norm=5.0)
    phase = model.next_item_phase(histories, training)
    step = OptimizerStep(phase, 0, training, Precision("fp32", device), DataParallelRank(), device)

    def take(first: int, last: int) -> float:
        begin = time.perf_counter()
        for index in range(first, last):
            step(phase.plan(0, 0, index), 1e-3)
        return (time.perf_counter() - begin) / (last - first)

    take(0, WARM_UP)
    count = phase.steps()
    seconds = take(WARM_UP, count - 1)
    return {
        "step_seconds": seconds,
        "last_step_seconds": take(count - 1, count),
        "peak_memory_bytes": peak_memory_bytes(),
        "model_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "optimizer": type(step.optimizer).__name__,
    }


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    chosen = result["settings"]
    about = (
        f"SASRec, width {chosen['width']}, {USERS_PER_STEP} users a step, loss {chosen['loss']}, "
        f"sampling {chosen['sampling']}, {chosen['negatives']} negatives, {chosen['threads']} "
        f"thread(s). Means over {chosen['steps']} steps, medians over {chosen['rounds']} round(s)."
    )
    lines = [
        "| items | ms a step | against the first | last step of an epoch, ms | peak, MiB "
        "| weights, MiB | optimizer |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {line['items']:,} | {with_interval(line['step_seconds'], 1e3)} "
        f"| {with_interval(line['against_first'])} "
        f"| {with_interval(line['last_step_seconds'], 1e3)} "
        f"| {line['peak_memory_bytes'] / 2**20:,.0f} | {line['model_bytes'] / 2**20:,.0f} "
        f"| {line['optimizer']} |"
        for line in result["lines"]
    ]
    return page(result, about, lines)


if __name__ == "__main__":
    raise SystemExit(main())

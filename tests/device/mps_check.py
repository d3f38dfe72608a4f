"""Every model on an Apple GPU beside the CPU: losses, seconds a step, memory; ``make mps-check``.

Trains the same batches from the same weights on both devices, without dropout, and writes a dated
JSON file to send back. Without an MPS device it says so and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from hasten.build import build_model, load_data, ranking_tasks
from hasten.config_loading.build import build_config
from hasten.distributed.device import describe_device
from hasten.evaluation.ranker import evaluate
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.memory.device import peak_bytes
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, ModelCase

#: relative difference of a loss or a metric between the devices that is not rounding
_TOLERANCE = 1e-3


def train(case: ModelCase, device: torch.device, steps: int) -> dict[str, Any]:
    """Losses of some steps, the metrics after them, the median seconds of a step, and memory."""
    settings = {"training.batch_size": 16, **case.settings, **case.without_dropout}
    config = build_config(case.model, None, None, (), settings)
    data = load_data(config, case.data)
    torch.manual_seed(0)
    model = build_model(config, data, torch.device("cpu")).to(device).train()
    losses, seconds = [], []
    for number, phase in enumerate(model.phases(data, config.training)):
        precision = Precision("fp32", device)
        stepper = OptimizerStep(
            phase, number, config.training, precision, DataParallelRank(), device
        )
        phase.start_epoch(0, 0)
        for index in range(steps):
            begin = time.perf_counter()
            terms = stepper(phase.plan(0, 0, index % phase.steps()), 1e-3)
            values = {name: float(value) for name, value in terms.items()}  # waits for the device
            seconds.append(time.perf_counter() - begin)
            losses += values.values()
        phase.end_epoch(0, 0)
    task, _ = ranking_tasks(data, config)
    metrics = evaluate(model, task, config.evaluation.metrics, device=device)
    return {
        "losses": losses,
        "metrics": metrics.values,
        "seconds_a_step": sorted(seconds)[len(seconds) // 2],
        "memory_bytes": peak_bytes(device),
    }


def compare(case: ModelCase, device: torch.device, steps: int) -> dict[str, Any]:
    """The case on both devices. error: why it failed there; apart: the largest difference."""
    expected = train(case, torch.device("cpu"), steps)
    try:
        found = train(case, device, steps)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return {"case": case.label, "cpu": expected, "error": str(error).splitlines()[0]}
    pairs = zip(
        [*expected["losses"], *expected["metrics"].values()],
        [*found["losses"], *found["metrics"].values()],
        strict=True,
    )
    differences = [abs(a - b) / max(abs(a), 1e-6) for a, b in pairs]
    # max() would pass over NaN
    apart = math.inf if any(map(math.isnan, differences)) else max(differences)
    return {"case": case.label, "cpu": expected, str(device.type): found, "apart": apart}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=5, help="steps of each phase of a model")
    parser.add_argument("--only", default="", help="the cases whose labels contain this")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args(arguments)
    if not torch.backends.mps.is_available():
        sys.stderr.write("error: no MPS device here; make mps-check needs an Apple GPU\n")
        return 2
    device, found = torch.device("mps"), []
    for case in (each for each in CASES if each.trains and options.only in each.label):
        one = compare(case, device, options.steps)
        found.append(one)
        told = one.get("error") or (
            f"{one['cpu']['seconds_a_step'] * 1e3:.1f} ms a step on the CPU, "
            f"{one['mps']['seconds_a_step'] * 1e3:.1f} there, apart {one['apart']:.1e}"
        )
        sys.stderr.write(f"{case.label}: {told}\n")
    machine = {"device": describe_device(device), "platform": platform.platform()}
    bad = [each["case"] for each in found if each.get("apart", math.inf) > _TOLERANCE]
    result = {"torch": torch.__version__, **machine, "steps": options.steps, "bad": bad}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{date.today().isoformat()}-mps-check.json"
    path.write_text(json.dumps({**result, "cases": found}, indent=1) + "\n")
    sys.stderr.write(f"{len(found)} cases, {len(bad)} of them differ or fail; written to {path}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What an all-reduce that runs during the backward pass could hide, from steps in one process.

    python -m bench.overlap sasrec conve kgat --rows 100000

Hooks note when the gradient of each parameter is complete: from then on its bytes could be summed
while the backward pass goes on. *early*: the part of a step's bytes that are complete before the
last 5 % of its backward passes. *hidden*: the part of a whole step that this saves if bytes are
sent at a rate (--rate, bytes a second; by default what gloo sums over two processes here), one
parameter after the other, computing slows by nothing and messages cost no latency: an upper bound.
Rows and bytes are those of one process, made data and default options, medians of some steps. With
row-wise Adam the rows of the table are the bytes, complete when the backward pass ends.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch

from bench.loading import made_for
from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.config_loading.data_defaults import with_data_defaults
from hasten.objectives.base import Phase
from hasten.registry import load_model
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

WARM_UP, STEPS, LAST = 2, 5, 0.05


class HookedStep(OptimizerStep):
    """Notes when each gradient was complete, and when backward passes began and ended."""

    def __init__(self, phase: Phase, number: int, training: Any) -> None:
        device = torch.device("cpu")
        super().__init__(
            phase, number, training, Precision("fp32", device), DataParallelRank(), device
        )
        #: by number of the parameter: seconds and bytes
        self.complete: dict[int, tuple[float, int]] = {}
        self.began = self.ended = 0.0
        for key, parameter in enumerate(self.parameters):

            def note(tensor: torch.Tensor, key: int = key) -> None:
                assert tensor.grad is not None
                self.complete[key] = time.perf_counter(), tensor.grad.nbytes

            parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]

    def accumulate(self, batch: Any) -> Any:
        self.complete, self.began = {}, 0.0
        losses = super().accumulate(batch)
        self.ended = time.perf_counter()
        for key, parameter in enumerate(self.optimizer.parameters):
            if key not in self.complete and parameter.grad is not None:  # the rows of a step
                self.complete[key] = self.ended, parameter.grad.nbytes
        return losses

    def backward(self, *arguments: Any) -> None:
        self.began = self.began or time.perf_counter()
        super().backward(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=1.3e9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| phase | step, ms | backward, ms | bytes | early | summing, ms | hidden |")
    print("| --- " * 7 + "|")
    for model in options.models:
        path, given = made_for(load_model(model).reads, options.rows)
        config = build_config(model, str(path), flags=given)
        dataset = load_data(config, None)
        config, _ = with_data_defaults(config, dataset)
        net = build_model(config, dataset, torch.device("cpu"), for_training=True).train()
        for number, phase in enumerate(net.phases(dataset, config.training)):
            cells = measured(HookedStep(phase, number, config.training), options.rate)
            print(f"| {model}, {phase.name} | {' | '.join(cells)} |", flush=True)


def measured(step: HookedStep, rate: float) -> list[str]:
    """The cells of a row."""
    found = []
    step.phase.start_epoch(0, 0)
    for index in range(min(WARM_UP + STEPS, step.phase.steps())):
        batch = step.phase.plan(0, 0, index)
        begin = time.perf_counter()
        step(batch, 1e-3)
        whole = time.perf_counter() - begin
        found.append((whole, step.ended - step.began, *hidden(step, rate)))
    columns = list(zip(*found[min(WARM_UP, len(found) - 1) :], strict=True))
    whole, backward, size, early, saved = (float(median(column)) for column in columns)
    summing = size / rate
    return [
        f"{1e3 * whole:.1f}", f"{1e3 * backward:.1f}", f"{size:,.0f}", f"{early:.1%}",
        f"{1e3 * summing:.2f}", f"{saved / (whole + summing):.1%}",
    ]  # fmt: skip


def hidden(step: HookedStep, rate: float) -> tuple[float, float, float]:
    """Bytes of a step, the part that is complete early, and the seconds that overlap saves."""
    order = sorted(step.complete.values())
    size = sum(each for _, each in order)
    limit = step.ended - LAST * (step.ended - step.began)
    early = sum(each for at, each in order if at < limit) / size
    free = step.began
    for at, each in order:
        free = max(free, at) + each / rate
    return size, early, step.ended + size / rate - free


if __name__ == "__main__":
    main()

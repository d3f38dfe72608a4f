"""What part of a training step processes share, counted in one process, without communication.

    python -m bench.shared_part --data beauty kinship ml-100k-facts --batch-sizes 128 512 2048

CPU milliseconds of a step of one process with a batch, and of the first of two processes with as
many examples for each, which computes its half of a batch twice as large. If all work were shared,
both would take the same. *at most*: the throughput of two against one if summing cost nothing and
both had a whole core; *not shared*: the part of a step that each process repeats for the other's
examples. *bytes*: what a step sums over processes.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch

from bench.data import plain_file
from bench.scaling import MODELS, settings
from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.config_loading.data_defaults import with_data_defaults
from hasten.objectives.base import Phase
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

WARM_UP, STEPS, CPU = 2, 6, torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["beauty", "kinship", "ml-100k-facts"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 512, 2048])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| phase | batch of a process | one, ms | of two, ms | at most | not shared | bytes |")
    print("| --- " * 7 + "|")
    for data in options.data:
        model = MODELS[data]
        for size in options.batch_sizes:
            one, two = phases(data, size), phases(data, 2 * size)
            for number in range(len(one)):
                alone, _ = step_ms(one[number], number, DataParallelRank())
                half, size_of_sum = step_ms(two[number], number, DataParallelRank(0, 2))
                bound, repeated = 2 * alone / half, max(0.0, half - alone) / half
                print(
                    f"| {model} {data}, {one[number][0].name} | {size} | {alone:.1f} | {half:.1f} "
                    f"| {bound:.2f} | {repeated:.0%} | {size_of_sum:,.0f} |",
                    flush=True,
                )


def phases(data: str, size: int) -> list[tuple[Phase, Any]]:
    """The phases of a model with this global batch, with their options."""
    chosen = settings(argparse.Namespace(data=data, set=[]))
    path = str(plain_file(data))
    config = build_config(MODELS[data], path, None, chosen, {"training.batch_size": size})
    dataset = load_data(config, None)
    config, _ = with_data_defaults(config, dataset)
    torch.manual_seed(0)
    net = build_model(config, dataset, CPU, for_training=True).train()
    return [(phase, config.training) for phase in net.phases(dataset, config.training)]


def step_ms(
    phase_and_options: tuple[Phase, Any], number: int, shard: DataParallelRank
) -> tuple[float, float]:
    """The medians of CPU milliseconds of a step of this share, and of the bytes of gradients."""
    phase, options = phase_and_options
    step = OptimizerStep(phase, number, options, Precision("fp32", CPU), shard, CPU)
    phase.start_epoch(0, 0)
    found, summed = [], []

    def count(*_: Any) -> None:
        gradients = [each.grad for each in step.optimizer.to_sum if each.grad is not None]
        summed.append(sum(each.nbytes for each in gradients))

    step.optimizer.register_step_pre_hook(count)
    for index in range(WARM_UP + STEPS):
        epoch, place = divmod(index, max(1, phase.steps() - 1))  # the last one is smaller
        begin = time.process_time()
        step(phase.plan(0, epoch, place), 1e-3)
        found.append(1e3 * (time.process_time() - begin))
    return median(found[WARM_UP:]), median(summed)


if __name__ == "__main__":
    main()

"""Two ways to sum gradients over processes: one flat all-reduce, and DistributedDataParallel.

    torchrun --nproc-per-node 2 -m bench.exchange [--width 64] [--items 3416] [--accumulate 2]

Both take the same optimiser steps of SASRec on synthetic sequences, in turns, in the same
processes; printed are medians of a step's wall and CPU milliseconds on rank 0, and the mean bytes
that the flat all-reduce sums in a step, beside those of all gradients. ``--bytes-only`` takes three
steps and counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hasten.config import DistributedOptions, TrainingOptions
from hasten.data.tables import Histories
from hasten.distributed.processes import Processes
from hasten.models.interface import Sizes
from hasten.models.sequential.sasrec import SASRec, SASRecOptions
from hasten.objectives.next_item import NextItemPhase
from hasten.runs.allocator import configure_process
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.precision import Precision, gradient_norm
from hasten.training.step import OptimizerStep

CPU = torch.device("cpu")


class Loss(nn.Module):
    """What DistributedDataParallel wraps: a module whose forward is the loss."""

    def __init__(self, model: SASRec) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> torch.Tensor:
        return self.model.next_item_loss(batch)


def build(options: argparse.Namespace) -> tuple[SASRec, NextItemPhase]:
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.geometric(1 / options.length, 6040) + 2, 3, 201)
    items = generator.integers(0, options.items, lengths.sum())
    histories = Histories(np.concatenate([[0], np.cumsum(lengths)]), items)
    torch.manual_seed(0)
    given: dict[str, Any] = {} if options.loss == "ce" else {"negatives": options.negatives}
    chosen = SASRecOptions(
        width=options.width, max_length=200, dropout=0.2, loss=options.loss, **given
    )
    model = SASRec(chosen, Sizes(users=len(lengths), items=options.items))
    training = TrainingOptions(batch_size=options.batch_size)
    return model.train(), model.next_item_phase(histories, training)


def flat(processes: Processes, options: argparse.Namespace) -> Callable[[int], None]:
    _, phase = build(options)
    shard = DataParallelRank(processes.rank, processes.world)
    training = TrainingOptions(
        clip_norm=5.0, accumulate=options.accumulate, weight_decay=options.weight_decay
    )
    step = OptimizerStep(phase, 0, training, Precision("fp32", CPU), shard, CPU, processes)

    def take(index: int) -> None:
        step(phase.plan(0, 0, index % phase.steps()), 1e-3)

    return take


def ddp(processes: Processes, options: argparse.Namespace) -> Callable[[int], None]:
    model, phase = build(options)
    wrapped = DistributedDataParallel(Loss(model), gradient_as_bucket_view=True)
    parameters = list(phase.parameters())
    optimiser = PhaseAdam(parameters, TrainingOptions(weight_decay=options.weight_decay))
    parts = processes.world * options.accumulate

    def take(index: int) -> None:
        batch = phase.plan(0, 0, index % phase.steps())
        optimiser.zero_grad()
        for micro in range(options.accumulate):
            ids = batch.micro_batch_ids(processes.rank * options.accumulate + micro, parts)
            last = micro == options.accumulate - 1
            with nullcontext() if last else wrapped.no_sync():
                loss = wrapped(phase.build_micro_batch(batch, ids.numpy()))
                (loss * (processes.world / batch.denominators["targets"])).backward()
        torch.nn.utils.clip_grads_with_norm_(parameters, 5.0, gradient_norm(parameters))
        optimiser.step()

    return take


def summed_bytes(processes: Processes, options: argparse.Namespace) -> dict[str, Any]:
    """Bytes of a step's all-reduce, a mean of three, and of all gradients."""
    counted: list[int] = []
    sum_ = Processes.sum_

    def count(self: Processes, tensor: torch.Tensor, what: str) -> torch.Tensor:
        counted.append(tensor.nbytes)
        return sum_(self, tensor, what)

    take = flat(processes, options)
    with patch.object(Processes, "sum_", count):
        for index in range(3):
            take(index)
    gradients = sum(p.numel() for p in build(options)[0].parameters()) * 4
    return {"summed_bytes": round(sum(counted) / 3), "bytes_of_all_gradients": gradients}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--items", type=int, default=3416)
    parser.add_argument("--length", type=int, default=95)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--loss", default="bce")
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--bytes-only", action="store_true")
    options = parser.parse_args()
    configure_process()
    torch.set_num_threads(1)
    with Processes.join("cpu", DistributedOptions()) as processes:
        counted = summed_bytes(processes, options)
        if options.bytes_only:
            if processes.is_rank0:
                print(json.dumps({"settings": vars(options), **counted}))
            return
        ways = {"flat": flat(processes, options), "ddp": ddp(processes, options)}
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.rounds):
            for name, take in ways.items():
                begin, used = time.perf_counter(), time.process_time()
                for index in range(3):
                    take(3 * number + index)
                if number >= 2:
                    wall[name].append((time.perf_counter() - begin) / 3 * 1e3)
                    cpu[name].append((time.process_time() - used) / 3 * 1e3)
        if processes.is_rank0:
            found = {
                "settings": vars(options),
                **counted,
                "wall_ms": {name: round(median(values), 2) for name, values in wall.items()},
                "cpu_ms": {name: round(median(values), 2) for name, values in cpu.items()},
                "flat_over_ddp": {
                    kind: round(median(a / b for a, b in zip(m["flat"], m["ddp"], strict=True)), 3)
                    for kind, m in (("wall", wall), ("cpu", cpu))
                },
            }
            print(json.dumps(found))


if __name__ == "__main__":
    main()

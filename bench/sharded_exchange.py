"""Bytes and collectives of a training step with sharded tables, counted.

    torchrun --nproc-per-node 2 -m bench.sharded_exchange

Made data: 200,000 items of skewed popularity and 40,000 users with 21 events each, 400,000 triples;
width 64. Each process takes four steps; the first, which finds out how much space messages need, is
not counted. A process that broadcasts n bytes sends them to each of the P - 1 others, so does an
all-gather; an all-to-all sends what is not for itself, and an all-reduce 2 (P - 1) / P of its bytes
(a ring). Printed: the mean of a step of the process that sends most, by purpose.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from bench.planning import events, triples
from hasten.build import build_model, load_data
from hasten.config import DistributedOptions
from hasten.config_loading.build import build_config
from hasten.distributed.processes import Processes
from hasten.runs.allocator import configure_process
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.sharding.tables import shard_tables
from hasten.training.step import OptimizerStep

CPU = torch.device("cpu")
WIDTH, STEPS = 64, 3
#: model, settings and data by name
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "sasrec sampled-softmax": ("sasrec", {"model.negatives": 2048}, "events"),
    "sasrec bce": ("sasrec", {"model.loss": "bce"}, "events"),
    "complex sampled": ("complex", {"model.loss": "sampled", "model.negatives": 32}, "triples"),
    "bprmf": ("bprmf", {}, "events"),
}
CASES["sasrec sampled-softmax"][1]["model.loss"] = "sampled-softmax"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=1024)
    options = parser.parse_args()
    configure_process()
    torch.set_num_threads(1)
    with Processes.join("cpu", DistributedOptions()) as processes:
        if processes.is_rank0:
            print("| step | processes | sent by a process, bytes | collectives | by purpose |")
            print("| --- " * 5 + "|")
        data = {"events": events(), "triples": triples()}
        for name, (model, settings, kind) in CASES.items():
            chosen = {**settings, "training.batch_size": options.batch_size}
            found = processes.gather(measured(model, chosen, data[kind], processes))
            most = max(found, key=lambda each: sum(each["bytes"].values()))
            if processes.is_rank0:
                parts = ", ".join(f"{what} {n:,.0f}" for what, n in most["bytes"].items())
                total, calls = sum(most["bytes"].values()), most["calls"]
                print(f"| {name} | {processes.world} | {total:,.0f} | {calls:g} | {parts} |")


def measured(
    name: str, settings: dict[str, Any], events: dict[str, Any], processes: Processes
) -> dict[str, Any]:
    """Bytes by purpose and the number of collectives, of a step."""
    settings = {**settings, "model.width": WIDTH, "training.shard_tables": "always"}
    config = build_config(name, None, None, (), settings)
    data = load_data(config, events)
    torch.manual_seed(0)
    model = build_model(config, data, CPU, processes=processes).train()
    (phase,) = phases = list(model.phases(data, config.training))
    assert shard_tables(model, phases, config.training, processes)
    shard = DataParallelRank(processes.rank, processes.world)
    step = OptimizerStep(phase, 0, config.training, Precision("fp32", CPU), shard, CPU, processes)
    step(phase.plan(0, 0, 0), 1e-3)
    with counted() as (sent, calls):
        for number in range(1, 1 + STEPS):
            step(phase.plan(0, 0, number), 1e-3)
    return {"bytes": {k: v / STEPS for k, v in sent.items()}, "calls": len(calls) / STEPS}


@contextmanager
def counted() -> Iterator[tuple[dict[str, float], list[str]]]:
    """Bytes that this process sends while the context is open, by purpose, and each collective."""
    sent: dict[str, float] = {}
    calls: list[str] = []

    def counting(name: str) -> Any:
        collective = getattr(Processes, name)

        def call(self: Processes, tensor: Tensor, *given: Any) -> Any:
            what = given[2] if name == "all_to_all" else given[0]
            others, nbytes = self.world - 1, float(tensor.nbytes)
            if name == "broadcast_":
                nbytes *= others * (given[1:] == (self.rank,))
            elif name == "all_gather":
                nbytes *= others
            elif name == "all_to_all":
                nbytes *= 1 - given[0][self.rank] / max(1, len(tensor))
            else:
                nbytes *= 2 * others / self.world
            sent[what] = sent.get(what, 0.0) + nbytes
            calls.append(what)
            return collective(self, tensor, *given)

        return patch.object(Processes, name, call)

    names = ("sum_", "max_", "broadcast_", "all_gather", "all_to_all")
    with ExitStack() as stack:
        for name in names:
            if hasattr(Processes, name):
                stack.enter_context(counting(name))
        yield sent, calls


if __name__ == "__main__":
    main()

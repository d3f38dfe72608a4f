"""Memory and exchanged bytes of a process that trains on a part of a graph: LightGCN or KGAT.

    python -m bench.sharded_graph --model lightgcn
    torchrun --nproc-per-node 2 -m bench.sharded_graph --model lightgcn

Made data: 1.5 users for each item, 10 random items of each user and, for ``kgat``, two facts about
each item. Each process loads them, takes some steps of each phase and validates 256 users, with one
thread. Printed for each process: bytes of what it holds, bytes that it gives to collectives in a
step of each phase, and how far its resident memory rose above that after loading the data.
``--tables never``: whole tables on each process.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv
from torch import Tensor

from hasten.build import build_model, evaluate_task, load_data, ranking_tasks
from hasten.config import DistributedOptions, RunConfig
from hasten.config_loading.build import build_config
from hasten.distributed.processes import Processes
from hasten.evaluation.validation_sample import validation_task
from hasten.ops.graph.graph_shard import column_blocks
from hasten.runs.allocator import configure_process
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.precision import Precision
from hasten.training.sharding.tables import shard_tables
from hasten.training.step import OptimizerStep

CPU = torch.device("cpu")
STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=["lightgcn", "kgat"], default="lightgcn")
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--tables", choices=["never", "always"], default="always")
    options = parser.parse_args()
    configure_process()
    torch.set_num_threads(1)
    with (
        Processes.join("cpu", DistributedOptions()) as processes,
        tempfile.TemporaryDirectory() as scratch,
    ):
        found = processes.gather(measured(options, processes, Path(scratch)))
        if processes.is_rank0:
            for each in found:
                print(json.dumps(each))


def made(options: argparse.Namespace, scratch: Path) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration and the interactions."""
    items, generator = options.items, np.random.default_rng(0)
    user = np.repeat(np.arange(items * 3 // 2), 10)
    item = generator.integers(0, items, len(user))
    item[:items] = np.arange(items)  # each item at least once
    settings: dict[str, Any] = {
        "model.width": options.width,
        "training.batch_size": options.batch_size,
        "training.shard_tables": options.tables,
        "evaluation.users": 256,
        "data.split": "ratio",
    }
    if options.model == "kgat":
        head, relation = np.repeat(np.arange(items), 2), np.tile([0, 1], items)
        tail = items + relation * items // 10 + generator.integers(0, items // 10, len(head))
        facts, file = {"head": head, "relation": relation, "tail": tail}, scratch / "facts.tsv"
        csv.write_csv(pa.table(facts), file, csv.WriteOptions(delimiter="\t"))
        settings |= {"data.kg": str(file), "model.dropout": 0.0}
    return build_config(options.model, None, None, (), settings), {"user_id": user, "item_id": item}


def measured(options: argparse.Namespace, processes: Processes, scratch: Path) -> dict[str, Any]:
    """What one process holds and sends."""
    config, events = made(options, scratch)
    data = load_data(config, events)
    del events
    before = forget_peak()
    model: Any = build_model(config, data, CPU, processes=processes)
    phases = list(model.phases(data, config.training))
    tables = shard_tables(model, phases, config.training, processes)
    rank = DataParallelRank(processes.rank, processes.world)
    built = memory("VmHWM") - before
    steps, sent, moments = [], {}, 0
    for number, phase in enumerate(phases):
        step = OptimizerStep(
            phase, number, config.training, Precision("fp32", CPU), rank, CPU, processes
        )
        phase.start_epoch(0, 0)
        with counted() as given:
            for index in range(STEPS):
                step(phase.plan(0, 0, index), 1e-3)
        step.optimizer.flush()
        sent[phase.name] = {name: round(count / STEPS) for name, count in given.items()}
        with counted() as given:
            phase.end_epoch(0, 0)
        sent |= {"end of an epoch": given} if given else {}
        held = [value for state in step.optimizer.state.values() for value in state.values()]
        if isinstance(step.optimizer, RowAdam):
            held += [step.optimizer.first, step.optimizer.second, step.optimizer.updated_to]
        moments += sum(each.nbytes for each in held)
        steps.append(step)
    trained = memory("VmHWM") - before
    model.eval()
    task = validation_task(ranking_tasks(data, config)[0], config.evaluation, config.seed)
    with counted() as given:
        evaluation = evaluate_task(model, task, config, processes, shard=tables.shard)
    validated = memory("VmHWM") - before
    part, table = getattr(model, "graph_shard", None), model.nodes.weight
    blocks = [] if part is None else column_blocks(part.shard, table)
    return {
        "processes": processes.world,
        "rank": processes.rank,
        "nodes": len(table),
        "bytes": {
            "weights, as many of gradients": table.nbytes,
            "moments": moments,
            "graph": size_of([part, model.graph, getattr(model, "weights", None)]),
            "gathered columns": max(
                [len(model.nodes) * (b.stop - b.start) * table.element_size() for b in blocks],
                default=0,
            ),
        },
        "sent": {**sent, "a validation": given},
        "resident before the model": before,
        "peak above it": {
            "built": built,
            "trained": trained,
            "validated": validated,
        },
        "metrics": evaluation.values,
    }


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Bytes that this process gives to collectives while the context is open, by purpose."""
    given: dict[str, int] = {}
    with (
        patch.object(Processes, "sum_", counting("sum_", given)),
        patch.object(Processes, "broadcast_", counting("broadcast_", given)),
        patch.object(Processes, "all_to_all", counting("all_to_all", given)),
    ):
        yield given


def counting(name: str, given: dict[str, int]) -> Any:
    """A collective that adds its bytes to ``given``; of a broadcast those of the sender.

    Of an all-to-all, what the process has for itself is left out.
    """
    collective = getattr(Processes, name)

    def call(self: Processes, tensor: Tensor, *arguments: Any) -> Tensor:
        what, count = arguments[0], tensor.nbytes
        if name == "all_to_all":
            what, kept = arguments[2], arguments[0][self.rank]
            count -= kept * count // max(1, len(tensor))
        if name != "broadcast_" or arguments[1:] == (self.rank,):
            given[what] = given.get(what, 0) + count
        found: Tensor = collective(self, tensor, *arguments)
        return found

    return call


def size_of(tree: Any, known: set[int] | None = None) -> int:
    """Bytes of the distinct arrays in nested dataclasses and lists."""
    known = set() if known is None else known
    if isinstance(tree, (Tensor, np.ndarray)):
        start = tree.data_ptr() if isinstance(tree, Tensor) else tree.ctypes.data
        new = start not in known
        known.add(start)
        return tree.nbytes if new else 0
    if is_dataclass(tree):
        return sum(size_of(getattr(tree, field.name), known) for field in fields(tree))
    return sum(size_of(each, known) for each in tree) if isinstance(tree, list) else 0


def memory(name: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def forget_peak() -> int:
    """Begin to measure the peak anew; the resident memory now."""
    fd = os.open("/proc/self/clear_refs", os.O_WRONLY)
    os.write(fd, b"5")
    os.close(fd)
    return memory("VmRSS")


if __name__ == "__main__":
    main()

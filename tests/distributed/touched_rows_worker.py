"""A process of the tests of touched rows: ``python -m`` this module, with a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from hasten.build import build_model, load_data
from hasten.config import DistributedOptions
from hasten.config_loading.build import build_config
from hasten.distributed import touched_rows
from hasten.distributed.processes import Processes
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, sequences
from tests.distributed.worker import BATCH

CPU = torch.device("cpu")
STEPS = 12
#: weight decay changes all rows in every step, so dense Adam updates them
DECAYED = {"training.weight_decay": 0.01}
#: (a case of the contract suite, its items) by name
MODELS = {
    "few-items": ("sasrec-sampled-softmax", 301),
    "more-items": ("sasrec-sampled-softmax", 601),
}
#: least rows of the table for each: never the rows alone, and as it comes
WAYS = {"whole": 10**6, "rows": touched_rows.MIN_TABLE_TO_TOUCHED_RATIO}


def build(name: str) -> tuple[Any, nn.Module, Any]:
    """The configuration, model in float64 and phase."""
    label, items = MODELS[name]
    case = next(case for case in CASES if case.label == label)
    settings = {"training.batch_size": BATCH, **case.settings, **case.without_dropout, **DECAYED}
    config = build_config(case.model, None, None, (), settings)
    data = load_data(config, sequences(50, items))
    torch.manual_seed(5)
    model = build_model(config, data, CPU).double()
    (phase,) = model.phases(data, config.training)
    return config, model, phase


def train(name: str, processes: Processes, fewest: int) -> dict[str, Any]:
    """Losses, weights, and of each step the bytes that are summed and the rows that are read."""
    config, model, phase = build(name)
    shard = DataParallelRank(processes.rank, processes.world)
    step = OptimizerStep(phase, 0, config.training, Precision("fp32", CPU), shard, CPU, processes)
    assert type(step.optimizer) is PhaseAdam
    summed: list[int] = []
    sum_ = Processes.sum_

    def counted(self: Processes, tensor: torch.Tensor, what: str) -> torch.Tensor:
        summed.append(tensor.nbytes)
        return sum_(self, tensor, what)

    losses, read = [], []
    ids, own_ids, unions = [], [], []
    with (
        patch.object(touched_rows, "MIN_TABLE_TO_TOUCHED_RATIO", fewest),
        patch.object(Processes, "sum_", counted),
    ):
        for number in range(STEPS):
            epoch, index = divmod(number, phase.steps())
            batch = phase.plan(0, epoch, index)
            ids.append(phase.table.read(batch).tolist())
            read.append(len(ids[-1]))
            batch = batch.for_process(*step.local_micro_batch_range)
            if step.all_reduce is not None:
                own = phase.table.read(batch)
                own_ids.append(own.tolist())
                unions.append(step.all_reduce.union(own).tolist())
            losses.append({key: float(value) for key, value in step(batch, 1e-2).items()})
    return {
        "losses": losses,
        "weights": {key: value.tolist() for key, value in model.state_dict().items()},
        "summed": summed,
        "read": read,
        "ids": ids,
        "own": own_ids,
        "union": unions,
        "table": list(phase.table.weight.shape),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def failed(processes: Processes) -> dict[str, Any]:
    """A step that runs out of memory on the last process: skipped on all, then taken."""
    config, _, phase = build("few-items")
    shard = DataParallelRank(processes.rank, processes.world)
    step = OptimizerStep(phase, 0, config.training, Precision("fp32", CPU), shard, CPU, processes)
    step.skips_when_out_of_memory = True
    step(phase.plan(0, 0, 0), 1e-2)
    before = phase.table.weight.detach().clone()
    if processes.rank == processes.world - 1:
        with patch.object(step, "accumulate", side_effect=MemoryError("none left")):
            losses = step(phase.plan(0, 0, 1), 1e-2)
    else:
        losses = step(phase.plan(0, 0, 1), 1e-2)
    unchanged = bool(torch.equal(before, phase.table.weight))
    failures = float(step.summed_failures)
    step.undo_skipped_steps(1)
    step(phase.plan(0, 0, 1), 1e-2)
    return {
        "losses": {key: float(value) for key, value in losses.items()},
        "unchanged": unchanged,
        "failures": failures,
        "goes_on": not torch.equal(before, phase.table.weight),
        "sum": float(phase.table.weight.sum()),
    }


def main(out: Path) -> None:
    torch.set_num_threads(1)
    with Processes.join("cpu", DistributedOptions(timeout=60, heartbeat=20)) as processes:
        found: dict[str, Any] = {
            name: {way: train(name, processes, fewest) for way, fewest in WAYS.items()}
            for name in MODELS
        }
        found["failed"] = failed(processes)
    (out / f"{processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

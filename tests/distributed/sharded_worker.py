"""A process of the tests of sharded tables: ``python -m tests.distributed.sharded_worker OUT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hasten.build import build_model, evaluate_task, load_data, ranking_tasks
from hasten.config import DistributedOptions
from hasten.config_loading.build import build_config
from hasten.distributed.processes import Processes
from hasten.runs.tensor_file import TensorFile
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.precision import Precision
from hasten.training.sharding.tables import ShardedTables, shard_tables
from hasten.training.step import DataShard, OptimizerStep
from tests.contract.cases import CASES, sequences
from tests.distributed.worker import BATCH

CPU = torch.device("cpu")
STEPS, ITEMS = 20, 301
#: (a case of the contract suite, its changes) by name
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "sasrec-bce": ("sasrec-bce-post", {}),
    "sasrec-gbce": ("sasrec-gbce", {}),
    "sasrec-sampled-softmax": ("sasrec-sampled-softmax", {}),
    "tisasrec-bce": ("tisasrec-ce", {"model.loss": "bce", "model.embedding_l2": 0.0}),
    "complex": ("complex-sampled", {}),
    "distmult": ("distmult", {"model.loss": "sampled", "model.negatives": 8}),
    "conve": ("conve", {"model.loss": "sampled", "model.negatives": 8}),
    "sampled-candidates": (
        "sasrec-gbce",
        {"evaluation.candidates": "uni100", "evaluation.mask_history": False},
    ),
}


def built(name: str) -> tuple[Any, Any, nn.Module, list[Any]]:
    """The configuration, dataset, model in float64 and phases."""
    label, changes = MODELS[name]
    case = next(case for case in CASES if case.label == label)
    settings = {"training.batch_size": BATCH, "training.shard_tables": "always"}
    settings |= {**case.settings, **case.without_dropout, **changes}
    config = build_config(case.model, None, None, (), settings)
    # more items than a step reads
    data = load_data(config, case.data if case.triples else sequences(50, ITEMS))
    torch.manual_seed(5)
    model = build_model(config, data, CPU).double()
    return config, data, model, list(model.phases(data, config.training))


def train(name: str, processes: Processes) -> dict[str, Any]:
    """Losses, metrics, sent rows and the tables after some steps."""
    config, data, model, phases = built(name)
    tables = shard_tables(model, phases, config.training, processes)
    shard = DataShard(processes.rank, processes.world)
    sent: list[int] = []
    exchange = Processes.broadcast_

    def counted(self: Processes, tensor: Tensor, what: str, source: int = 0) -> Tensor:
        sent.append(len(tensor) * (source == self.rank))
        return exchange(self, tensor, what, source)

    with patch.object(RowAdam, "suits", lambda *_: True):
        steps = [
            OptimizerStep(phase, n, config.training, Precision("fp32", CPU), shard, CPU, processes)
            for n, phase in enumerate(phases)
        ]
    losses, read = [], 0
    (step,) = steps
    with patch.object(Processes, "broadcast_", counted):
        while len(losses) < STEPS:
            epoch = len(losses) // step.phase.steps()
            index = len(losses) % step.phase.steps()
            if index == 0:
                step.phase.start_epoch(0, epoch)
            batch = step.phase.plan(0, epoch, index)
            read += len(step.phase.table.read(batch))
            losses.append({k: float(v) for k, v in step(batch, 1e-2).items()})
    step.optimizer.flush()
    model.eval()
    task = ranking_tasks(data, config)[0]
    found = evaluate_task(model.float(), task, config, processes, shard=tables.shard)
    model.double()
    return {
        "losses": losses,
        "metrics": found.values,
        "ranks": [counts.tolist() for counts in vars(found.ranks).values()],
        "sent": sum(sent),
        "read": read,
        "held": {name: list(p.shape) for name, p in model.named_parameters()},
        "moments": list(step.optimizer.first.shape),
        "sharded": tables.names,
    } | _written(model, step, tables, processes)


def _written(
    model: nn.Module, step: OptimizerStep, tables: ShardedTables, processes: Processes
) -> dict[str, Any]:
    """The weights and optimizer state as a checkpoint holds them, on rank 0."""
    optimizer = {f"{step.phase.name}.{k}": v for k, v in step.optimizer.tensors()[0].items()}
    groups = tables.whole({"weights": model.state_dict(), "optimisers": optimizer})
    if not processes.is_rank0:
        for named in groups.values():
            TensorFile(named).send()
        return {}
    written: dict[str, Any] = {}
    for group, named in groups.items():
        file = OUT / f"{group}-{processes.world}.safetensors"
        file.unlink(missing_ok=True)
        TensorFile(named).write(file)
        written[group] = {k: v.tolist() for k, v in load_file(file).items()}
    return written


OUT = Path(sys.argv[1]) if __name__ == "__main__" else Path()


def main() -> None:
    torch.set_num_threads(1)
    with Processes.join("cpu", DistributedOptions(timeout=60, heartbeat=20)) as processes:
        found = {name: train(name, processes) for name in MODELS}
    (OUT / f"{processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

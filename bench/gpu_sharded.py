"""Tables that are sharded over the devices beside whole ones, for ``make gpu-check``.

    torchrun --nproc-per-node 2 -m bench.gpu_sharded [--device cuda] [--steps 40]

SASRec with sampled softmax and with cross-entropy over all items, the same steps from the same
weights: the weights afterwards, and the metrics of sharded tables beside those of the same
weights in whole tables. One process holds all rows of its shard; it exchanges them with itself.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor

from bench.gpu_training import Synthetic
from hasten.build import build_model, evaluate_task, load_data, ranking_tasks
from hasten.config import DistributedOptions, RunConfig
from hasten.config_loading.build import build_config
from hasten.distributed.device import prepare_torch
from hasten.distributed.processes import Processes
from hasten.models.interface import Model
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.sharding.tables import ShardedTables, divide_tables
from hasten.training.step import OptimizerStep

#: by name: the loss, with the optimizer that it takes
LOSSES = {
    "sampled-softmax, row-wise Adam": {"model.loss": "sampled-softmax"},
    "ce, vocabulary-parallel": {"model.loss": "ce"},
}
#: largest difference of weights, as a share of the norm, and of a metric. Sums are in other orders,
#: and Adam takes whole steps where gradients are as small as rounding: .0023 after 40 on a CPU
_WEIGHTS, _METRIC = 5e-3, 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    # the order of atomic additions alone moves weights by more than the limit
    torch.use_deterministic_algorithms(mode=True)
    with Processes.join(options.device, DistributedOptions()) as processes:
        prepare_torch(None, False, processes.device, processes.launch)
        rows = {name: compared(each, options.steps, processes) for name, each in LOSSES.items()}
        if processes.is_rank0:
            found = {"processes": processes.world, "backend": processes.backend, "losses": rows}
            print(json.dumps({"passed": all(row["passed"] for row in rows.values()), **found}))


def compared(settings: dict[str, Any], steps: int, processes: Processes) -> dict[str, Any]:
    """Sharded tables beside whole ones with one loss."""
    chosen = {"model.dropout": 0.0, "training.batch_size": 128, "training.shard_tables": "always"}
    # Adam turns the rounding of TF32 into steps of any size where gradients are small
    chosen["training.matmul"] = "highest"
    config = build_config("sasrec", None, None, (), {**chosen, **settings})
    data = load_data(config, Synthetic(2000, 5000, 50).columns())
    task, _ = ranking_tasks(data, config)

    def metrics(model: Model, tables: ShardedTables) -> dict[str, float]:
        return evaluate_task(model, task, config, processes, shard=tables.shard).values

    whole, _ = trained(config, data, steps, processes, sharded=False)
    model, tables = trained(config, data, steps, processes, sharded=True)
    of_shards = metrics(model, tables)
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        shard = tables.tensors.get(("weights", name))
        weights[name] = tensor if shard is None else shard.gather(tensor)
    expected = torch.cat([each.flatten() for each in whole.state_dict().values()])
    found = torch.cat([each.flatten() for each in weights.values()])
    difference = float((found - expected).norm() / expected.norm())
    whole.load_state_dict(weights)
    of_whole = metrics(whole, ShardedTables())
    strayed = max(abs(of_shards[name] - value) for name, value in of_whole.items())
    return {
        "passed": difference <= _WEIGHTS and strayed <= _METRIC and bool(tables),
        "difference": difference,
        "metrics": of_shards,
        "metrics_of_whole_tables": of_whole,
        "rows": len(next(iter(tables.parameters))),
    }


def trained(
    config: RunConfig, data: Any, steps: int, processes: Processes, *, sharded: bool
) -> tuple[Model, ShardedTables]:
    """A model after so many steps, of which each process computes a part."""
    torch.manual_seed(0)
    model = build_model(config, data, processes.device).train()
    phases, tables = list(model.phases(data, config.training)), ShardedTables()
    if sharded:
        tables = divide_tables(model, phases, processes)
    (phase,), shard = phases, DataParallelRank(processes.rank, processes.world)
    precision = Precision("fp32", processes.device)
    step = OptimizerStep(phase, 0, config.training, precision, shard, processes.device, processes)
    for number in range(steps):
        epoch, index = divmod(number, phase.steps())
        step(step.plan(0, epoch, index), 1e-3)
    step.optimizer.flush()
    return model, tables


if __name__ == "__main__":
    main()

"""A process of the tests of sharded tables: ``python -m tests.distributed.sharded_worker OUT``."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.build import build_model, evaluate_task, load_data, ranking_tasks
from hasten.config import DistributedOptions
from hasten.config_loading.build import build_config
from hasten.distributed.processes import Processes
from hasten.distributed.row_shard import RowShard
from hasten.ops.losses import catalogue_loss
from hasten.ops.losses.catalogue_targets import CatalogueTargets, LabelPairs
from hasten.ops.losses.table_losses import table_cross_entropy, table_one_to_many
from hasten.ops.sharded_table import ShardedTable
from hasten.ops.table import EmbeddingTable
from hasten.runs.tensor_file import TensorFile
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.precision import Precision
from hasten.training.sharding.tables import ShardedTables, shard_tables
from hasten.training.step import DataShard, OptimizerStep
from tests.contract.cases import CASES, sequences
from tests.distributed.worker import BATCH

CPU = torch.device("cpu")
STEPS, ITEMS = 12, 301
#: bytes of logits: all at once, a few queries at a time, and columns instead
CHUNKS = {"all": 1 << 20, "queries": 4 * 34 * 64, "columns": 4 * 34 * 8}
#: (a case of the contract suite, its changes) by name
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "sasrec-bce": ("sasrec-bce-post", {}),
    "sasrec-gbce": ("sasrec-gbce", {}),
    "sasrec-sampled-softmax": ("sasrec-sampled-softmax", {}),
    "tisasrec-bce": ("tisasrec-ce", {"model.loss": "bce", "model.embedding_l2": 0.0}),
    "complex": ("complex-sampled", {}),
    "sasrec-ce": ("sasrec-ce", {}),
    "sasrec-ce-clip": (
        "sasrec-ce",
        {"training.clip_norm": 0.05, "training.accumulate": 3, "training.weight_decay": 0.01},
    ),
    "tisasrec-ce": ("tisasrec-ce", {}),
    "complex-1vsall": ("complex-sampled", {"model.loss": "1vsall", "model.negatives": None}),
    "complex-1-n-softmax": (
        "complex-sampled",
        {
            "model.loss": "1-n-softmax",
            "model.negatives": None,
            "model.n3": 0.01,
            "model.relation_weight": 0.5,
        },
    ),
    "conve-1-n": ("conve", {"model.loss": "1-n"}),
    "bprmf": ("bprmf", {}),
    "distmult": ("distmult", {"model.loss": "sampled", "model.negatives": 8}),
    "conve": ("conve", {"model.loss": "sampled", "model.negatives": 8}),
    "sampled-candidates": (
        "sasrec-gbce",
        {"evaluation.candidates": "uni100", "evaluation.mask_history": False},
    ),
}


def built(name: str, processes: Processes | None = None) -> tuple[Any, Any, nn.Module, list[Any]]:
    """The configuration, dataset, model in float64 and phases.

    processes: that divide its tables from the start; None: whole.
    """
    label, changes = MODELS[name]
    case = next(case for case in CASES if case.label == label)
    settings = {"training.batch_size": BATCH, "training.shard_tables": "always"}
    settings |= {**case.settings, **case.without_dropout, **changes}
    config = build_config(case.model, None, None, (), settings)
    # more items than a step reads
    data = load_data(config, case.data if case.triples else sequences(50, ITEMS))
    torch.manual_seed(5)
    model = build_model(config, data, CPU, processes=processes).double()
    return config, data, model, list(model.phases(data, config.training))


def train(name: str, processes: Processes) -> dict[str, Any]:
    """Losses, metrics, sent rows and the tables after some steps."""
    config, data, model, phases = built(name, processes)
    tables = shard_tables(model, phases, config.training, processes)
    shard = DataShard(processes.rank, processes.world)
    sent: dict[str, int] = {}

    def counting(name: str) -> Any:
        """The collective; counts the elements that this process gives to it."""
        collective = getattr(Processes, name)

        def counted(self: Processes, tensor: Tensor, what: str, *rank: int) -> Tensor:
            gives = name != "broadcast_" or rank == (self.rank,)
            sent[what] = sent.get(what, 0) + tensor.numel() * gives
            return collective(self, tensor, what, *rank)

        return patch.object(Processes, name, counted)

    with patch.object(RowAdam, "suits", lambda *_: True):
        steps = [
            OptimizerStep(phase, n, config.training, Precision("fp32", CPU), shard, CPU, processes)
            for n, phase in enumerate(phases)
        ]
    losses, read = [], 0
    (step,) = steps
    queries = 0
    with ExitStack() as counters:
        for name in ("broadcast_", "sum_", "max_", "sum_at_"):
            counters.enter_context(counting(name))
        while len(losses) < STEPS:
            epoch = len(losses) // step.phase.steps()
            index = len(losses) % step.phase.steps()
            if index == 0:
                step.phase.start_epoch(0, epoch)
            batch = step.phase.plan(0, epoch, index)
            batch = batch.divided(*step.micro_batch_numbers, step.phase.collective)
            read += len((step.phase.table or step.phase.divisible).read(batch))
            queries += step.phase.examples(batch)
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
        "sent": sent,
        "read": read,
        "queries": queries,
        "held": {name: list(p.shape) for name, p in model.named_parameters()},
        "moments": _moments(step),
        "sharded": tables.names,
    } | _written(model, step, tables, processes)


def table_losses(processes: Processes) -> dict[str, float]:
    """How far the losses over sharded tables are from those over whole ones, with gradients."""
    torch.manual_seed(3)
    count, width, world = 101, 8, processes.world
    table, bias = torch.randn(count, width).double(), torch.randn(count).double()
    x = torch.randn(90 * world, width).double()
    query = torch.randint(0, len(x), (4 * len(x),))
    pairs = torch.unique(torch.stack([query, torch.randint(0, count, query.shape)], 1), dim=0)
    targets = torch.randint(0, count, (len(x),))
    # rank 0 has no queries if there are others
    shares = [0, *(len(x) * rank // (world - 1) for rank in range(1, world))]
    bounds = [0, *shares] if world > 1 else [0, len(x)]
    start, stop = bounds[processes.rank], bounds[processes.rank + 1]
    own = pairs[(pairs[:, 0] >= start) & (pairs[:, 0] < stop)] - torch.tensor([start, 0])
    several = CatalogueTargets.build(own[:, 1], own[:, 0].contiguous(), stop - start)
    embeddings = EmbeddingTable(count, width).double()
    shard = RowShard(processes, count)

    def compared(loss: Any, whole: Any) -> float:
        """The largest difference of a loss and its gradients."""
        a = [t.clone().requires_grad_() for t in (x, table, bias)]
        expected = whole(*a)
        expected.backward()
        b = [t.clone().requires_grad_() for t in (x[start:stop], bias)]
        embeddings.weight = nn.Parameter(table.clone())
        if world > 1:
            ShardedTable.divide(embeddings, shard)
        found = loss(b[0], embeddings, b[1])
        found.backward()
        processes.sum_(found.detach(), "a loss")
        processes.sum_(b[1].grad, "a gradient")
        differences = [
            found - expected,
            b[0].grad - a[0].grad[start:stop],
            embeddings.weight.grad - a[1].grad[shard.first : shard.stop],
            b[1].grad - a[2].grad,
        ]
        return max([float(each.detach().abs().max()) for each in differences if each.numel()])

    def softmax(x: Tensor, table: Tensor, bias: Tensor, many: bool) -> Tensor:
        logits = x @ table.T + bias
        chosen = pairs if many else torch.stack([torch.arange(len(x)), targets], 1)
        return -torch.log_softmax(logits, 1)[chosen[:, 0], chosen[:, 1]].sum()

    def binary(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        scores, labels = x @ table.T + bias, torch.zeros(len(x), count).double()
        labels[pairs[:, 0], pairs[:, 1]] = 0.9
        return F.binary_cross_entropy_with_logits(scores, labels + 0.1 / count, reduction="sum")

    labels, errors = LabelPairs.build(own[:, 0], own[:, 1]), {}
    for name, size in CHUNKS.items():
        with patch.object(catalogue_loss, "CHUNK_BYTES_CPU", size):
            errors[f"one target, {name}"] = compared(
                lambda x, t, b: table_cross_entropy(x, t, targets[start:stop], b),
                lambda *given: softmax(*given, many=False),
            )
            errors[f"many targets, {name}"] = compared(
                lambda x, t, b: table_cross_entropy(x, t, several, b),
                lambda *given: softmax(*given, many=True),
            )
    errors["binary"] = compared(lambda x, t, b: table_one_to_many(x, t, labels, b, 0.1), binary)
    return errors


def _moments(step: OptimizerStep) -> list[int]:
    """The shape of the first moment of the table."""
    if isinstance(step.optimizer, RowAdam):
        return list(step.optimizer.first.shape)
    weight = (step.phase.table or step.phase.divisible).weight
    return list(step.optimizer.state[weight]["exp_avg"].shape)


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
        found["table losses"] = table_losses(processes)
    (OUT / f"{processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

"""A process of the tests of sharded tables: ``python -m tests.distributed.sharded_worker OUT``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count, islice
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
from hasten.models.collaborative.kgat import KGAT
from hasten.objectives.base import Batch
from hasten.ops.graph import graph_shard
from hasten.ops.graph.graph_shard import GraphShard
from hasten.ops.graph.propagated_rows import RequestedNodes, propagated_rows
from hasten.ops.losses import catalog_loss
from hasten.ops.losses.catalog_targets import CatalogTargets, LabelPairs
from hasten.ops.losses.table_losses import table_cross_entropy, table_one_to_many
from hasten.ops.sharded_table import JoinedRows, ShardedTable
from hasten.ops.table import EmbeddingTable
from hasten.ops.transfer import to_device
from hasten.runs.tensor_file import TensorFile
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.precision import Precision
from hasten.training.sharding.tables import ShardedTables, shard_tables
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, sequences
from tests.device.recorder import recording
from tests.distributed.worker import BATCH

CPU = torch.device("cpu")
#: of the processes; another one is simulated (:mod:`.sharded_device_worker`)
DEVICE = CPU
STEPS, ITEMS = 12, 301
#: the learning rate: the same number in float32, in which devices hold it
RATE = 2.0**-7
#: bytes of logits: all at once, a few queries at a time, and columns instead
CHUNKS = {"all": 1 << 20, "queries": 4 * 34 * 64, "columns": 4 * 34 * 8}
#: (a case of the contract suite, its changes) by name
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "sasrec-bce": ("sasrec-bce-post", {}),
    "sasrec-gbce": ("sasrec-gbce", {}),
    "sasrec-sampled-softmax": ("sasrec-sampled-softmax", {}),
    "tisasrec-bce": ("tisasrec-ce", {"model.loss": "bce", "model.embedding_l2": 0.0}),
    "complex": ("complex-sampled", {}),
    "complex-sampled-softmax": ("complex-sampled-softmax", {"training.accumulate": 3}),
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
    "lightgcn": ("lightgcn", {"training.clip_norm": 0.05}),
    "lightgcn-one-layer": (
        "lightgcn",
        {"model.layers": 1, "training.accumulate": 3, "training.weight_decay": 0.01},
    ),
    "lightgcn-softmax": ("lightgcn-softmax", {"training.accumulate": 3}),
    "kgat": ("kgat", {"training.clip_norm": 0.05}),
    "kgat-gcn": ("kgat-gcn", {"training.accumulate": 3, "training.recompute": True}),
    "kgat-graphsage": ("kgat-graphsage", {}),
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
    model = build_model(config, data, DEVICE, processes=processes).double()
    return config, data, model, list(model.phases(data, config.training))


def train(name: str, processes: Processes) -> dict[str, Any]:
    """Losses, metrics, sent rows and the tables after some steps."""
    config, data, model, phases = built(name, processes)
    tables = shard_tables(model, phases, config.training, processes)
    sent: dict[str, int] = {}
    calls: dict[str, int] = {}

    def counting(name: str) -> Any:
        """The collective; counts the elements that this process gives to it."""
        collective = getattr(Processes, name)

        def counted(self: Processes, tensor: Tensor, *given: Any) -> Tensor:
            what = given[2] if name == "all_to_all" else given[0]
            gives = name != "broadcast_" or given[1:] == (self.rank,)
            sent[what] = sent.get(what, 0) + tensor.numel() * gives
            calls[what] = calls.get(what, 0) + 1
            return collective(self, tensor, *given)

        return patch.object(Processes, name, counted)

    with patch.object(RowAdam, "suits", lambda *_: True):
        steps = [_step(phase, n, config, processes) for n, phase in enumerate(phases)]
    losses, queries = [], 0
    waits: list[dict[str, int]] = []
    mistakes: list[str] = []
    read = {"of all": 0, "own": 0}
    with ExitStack() as counters:
        for name in ("broadcast_", "sum_", "max_", "sum_at_", "all_to_all"):
            counters.enter_context(counting(name))
        for step, epoch, index in islice(_positions(steps), STEPS):
            if index == 0:
                step.phase.start_epoch(0, epoch)
            batch = step.plan(0, epoch, index)
            batch = batch.for_process(*step.local_micro_batch_range, step.phase.communicates)
            kind, numbers = _numbers_read(model, step, batch)
            read[kind] += numbers
            queries += step.phase.examples(batch)
            with recording() as taken:
                values = step(batch, RATE)
            waits.append(dict(taken.waits))
            mistakes += taken.mistakes
            losses.append({k: float(v) for k, v in values.items()})
            if index == step.phase.steps() - 1:
                step.phase.end_epoch(0, epoch)
    for step in steps:
        step.optimizer.flush()
    model.eval()
    task = ranking_tasks(data, config)[0]
    found = evaluate_task(model.float(), task, config, processes, shard=tables.shard)
    model.double()
    return {
        "losses": losses,
        "metrics": found.values,
        "ranks": [counts.tolist() for counts in vars(found.rank_counts).values()],
        "sent": sent,
        "calls": calls,
        "read": read,
        "queries": queries,
        "waits": waits,
        "mistakes": mistakes,
        "held": {name: list(p.shape) for name, p in model.named_parameters()},
        "moments": [_moments(step) for step in steps],
        "sharded": tables.names,
    } | _written(model, steps, tables, processes)


def _step(phase: Any, number: int, config: Any, processes: Processes) -> OptimizerStep:
    """The step of a phase."""
    precision, shard = Precision("fp32", DEVICE), DataParallelRank(processes.rank, processes.world)
    return OptimizerStep(phase, number, config.training, precision, shard, DEVICE, processes)


def _positions(steps: Sequence[OptimizerStep]) -> Iterator[tuple[OptimizerStep, int, int]]:
    """The phase, epoch and index of each step of a run."""
    for epoch in count():
        for step in steps:
            for index in range(step.phase.steps()):
                yield step, epoch, index


def _numbers_read(model: nn.Module, step: OptimizerStep, batch: Batch) -> tuple[str, int]:
    """The numbers of the rows that a step reads, with those of inner layers of a graph.

    They are read by all processes if the encoder of a graph reads them, else by this one.
    """
    table = step.phase.table or step.phase.shardable
    width, inner = table.weight.shape[1], ()
    if table.candidates is not None and isinstance(model, KGAT):
        inner = model.options.layers[:-1]
    kind = "own" if table.candidates is None else "of all"
    return kind, len(table.read(batch)) * sum((width, *inner))


def table_losses(processes: Processes) -> dict[str, float]:
    """How far the losses over sharded tables are from those over whole ones, with gradients."""
    torch.manual_seed(3)
    rows, width, world = 101, 8, processes.world
    table, bias = torch.randn(rows, width).double(), torch.randn(rows).double()
    x = torch.randn(90 * world, width).double()
    query = torch.randint(0, len(x), (4 * len(x),))
    pairs = torch.unique(torch.stack([query, torch.randint(0, rows, query.shape)], 1), dim=0)
    targets = torch.randint(0, rows, (len(x),))
    # rank 0 has no queries if there are others
    shares = [0, *(len(x) * rank // (world - 1) for rank in range(1, world))]
    bounds = [0, *shares] if world > 1 else [0, len(x)]
    start, stop = bounds[processes.rank], bounds[processes.rank + 1]
    own = pairs[(pairs[:, 0] >= start) & (pairs[:, 0] < stop)] - torch.tensor([start, 0])
    several = CatalogTargets.build(own[:, 1].contiguous(), own[:, 0].contiguous(), stop - start)
    several = to_device(several, DEVICE)
    embeddings = EmbeddingTable(rows, width).double()
    shard = RowShard(processes, rows)

    def compared(loss: Any, whole: Any) -> float:
        """The largest difference of a loss and its gradients."""
        a = [t.clone().requires_grad_() for t in (x, table, bias)]
        expected = whole(*a)
        expected.backward()
        b = [t.clone().to(DEVICE).requires_grad_() for t in (x[start:stop], bias)]
        embeddings.weight = nn.Parameter(table.clone().to(DEVICE))
        if world > 1:
            ShardedTable.shard_weight(embeddings, shard)
        found = loss(b[0], embeddings, b[1])
        found.backward()
        processes.sum_(found.detach(), "a loss")
        processes.sum_(b[1].grad, "a gradient")
        differences = [
            found.detach().cpu() - expected.detach(),
            b[0].grad.cpu() - a[0].grad[start:stop],
            embeddings.weight.grad.cpu() - a[1].grad[shard.first : shard.stop],
            b[1].grad.cpu() - a[2].grad,
        ]
        return max([float(each.detach().abs().max()) for each in differences if each.numel()])

    def softmax(x: Tensor, table: Tensor, bias: Tensor, many: bool) -> Tensor:
        logits = x @ table.T + bias
        chosen = pairs if many else torch.stack([torch.arange(len(x)), targets], 1)
        return -torch.log_softmax(logits, 1)[chosen[:, 0], chosen[:, 1]].sum()

    def binary(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        scores, labels = x @ table.T + bias, torch.zeros(len(x), rows).double()
        labels[pairs[:, 0], pairs[:, 1]] = 0.9
        return F.binary_cross_entropy_with_logits(scores, labels + 0.1 / rows, reduction="sum")

    labels, errors = to_device(LabelPairs.build(own[:, 0], own[:, 1]), DEVICE), {}
    single = to_device(targets[start:stop], DEVICE)
    where = "CPU" if DEVICE == CPU else "DEVICE"
    for name, size in CHUNKS.items():
        with patch.object(catalog_loss, f"CHUNK_BYTES_{where}", size):
            errors[f"one target, {name}"] = compared(
                lambda x, t, b: table_cross_entropy(x, t, single, b),
                lambda *given: softmax(*given, many=False),
            )
            errors[f"many targets, {name}"] = compared(
                lambda x, t, b: table_cross_entropy(x, t, several, b),
                lambda *given: softmax(*given, many=True),
            )
    errors["binary"] = compared(lambda x, t, b: table_one_to_many(x, t, labels, b, 0.1), binary)
    return errors


def requested_rows(processes: Processes) -> dict[str, Any]:
    """Rows of one and of two tables that processes ask for, and sums of what they send back."""
    generator = torch.Generator().manual_seed(3)
    totals, world = [101, 17], processes.world
    found: dict[str, Any] = {}
    for tables in (1, 2):
        shards = [RowShard(processes, total) for total in totals[:tables]]
        joined = JoinedRows(shards) if tables > 1 else shards[0]
        ask, count = joined.requests(), sum(totals[:tables])
        whole = torch.randn(count, 3, generator=generator)
        starts = [0, totals[0]]
        held = torch.cat(
            [whole[b + s.first : b + s.stop] for b, s in zip(starts, shards, strict=False)]
        )
        for step, most in enumerate((0, 1, count, 5, count)):
            numbers = [torch.randperm(count, generator=generator)[: most >> rank].sort().values
                       for rank in range(world)]  # fmt: skip
            numbers[step % world] = numbers[0][:0]  # this one has no examples
            if step == 4:  # all ask the last process only
                numbers = [torch.arange(count - 3, count)[: 9 * len(n)] for n in numbers]
            values = [torch.randn(len(ids), 3, generator=generator) for ids in numbers]
            requested = ask(numbers[processes.rank].to(DEVICE))
            rows = requested.fetch(held.to(DEVICE)[requested.rows]).cpu()
            sums = requested.sum_back(values[processes.rank].to(DEVICE)).cpu()
            asked_for = requested.rows.cpu()
            expected = torch.zeros_like(whole)
            for ids, each in zip(numbers, values, strict=True):
                expected[ids] += each
            total = torch.zeros_like(held)
            total[asked_for] = sums
            of_process = torch.cat(
                [expected[b + s.first : b + s.stop] for b, s in zip(starts, shards, strict=False)]
            )
            found[f"{tables} tables, step {step}"] = {
                "rows": torch.equal(rows, whole[numbers[processes.rank]]),
                "sums": torch.equal(total, of_process),  # in the order of ranks, so exact
                "distinct": bool((asked_for.diff() > 0).all()),
                "held": len(asked_for),
                "asked": len(numbers[processes.rank]),
            }
    return found


def skipped(name: str, processes: Processes) -> dict[str, Any]:
    """A step in which the last process alone has a gradient that is not finite, and the next."""
    config, _, model, phases = built(name, processes)
    shard_tables(model, phases, config.training, processes)
    step = _step(phases[-1], len(phases) - 1, config, processes)
    for phase in phases:
        phase.start_epoch(0, 0)
    table = phases[-1].table.weight
    before, backward = table.detach().clone(), step.backward

    def spoiled(terms: Any, losses: dict[str, Tensor]) -> None:
        backward(terms, losses)
        if processes.rank == processes.world - 1:
            leaf = step.optimizer.parameters[step.optimizer._number]
            leaf.grad[0, 0] = torch.inf

    with patch.object(step, "backward", spoiled):
        first = step(phases[-1].plan(0, 0, 0), RATE)
    unchanged = torch.equal(before, table)
    second = step(phases[-1].plan(0, 0, 1), RATE)
    return {
        "steps": [float(first["steps"]), float(second["steps"])],
        "unchanged": unchanged,
        "goes on": not torch.equal(before, table),
    }


def graph_products(processes: Processes) -> dict[str, float]:
    """How far products with a graph and a table in parts are from dense ones, with gradients."""
    torch.manual_seed(3)
    total, width, layers = 101, 5, 3
    shard = RowShard(processes, total)
    dense = torch.rand(total, total).double() * (torch.rand(total, total) < 0.1)
    dense[:, 7] = dense[40] = 0  # a node that no other reads, and one that reads none
    row, column = (each.numpy() for each in dense.nonzero().unbind(1))
    part = GraphShard.of_edges(shard, row, column, dense[row, column]).to(DEVICE)
    x, weight = torch.randn(total, width).double(), torch.randn(2, 30, width).double()
    rows = torch.randperm(total)[:30].sort().values
    own = slice(shard.first, shard.stop)
    errors: dict[str, float] = {}

    def compare(name: str, found: Tensor, expected: Tensor) -> None:
        errors[name] = float((found.detach().cpu() - expected.detach()).abs().max())

    def compare_all(name: str, part: GraphShard, dense: Tensor) -> None:
        compare(f"product, {name}", part.multiply(x[own].to(DEVICE)), (dense @ x)[own])
        compare(
            f"transposed, {name}", part.multiply_transposed(x[own].to(DEVICE)), (dense.T @ x)[own]
        )
        whole = x.clone().requires_grad_()
        powers = [whole]
        for _ in range(layers):
            powers.append(dense @ powers[-1])
        expected = whole[rows], sum(powers[1:])[rows]
        sum((w * e).sum() for w, e in zip(weight, expected, strict=True)).backward()
        held = x[own].clone().to(DEVICE).requires_grad_()
        nodes = to_device(RequestedNodes.of(part, rows), DEVICE)
        found = propagated_rows(part, held, nodes, layers)
        # each process has a share of the gradient
        share = [w.clone() for w in weight]
        for each in share:
            each[torch.arange(len(rows)) % processes.world != processes.rank] = 0
        sum((w.to(DEVICE) * f).sum() for w, f in zip(share, found, strict=True)).backward()
        compare(f"rows, {name}", found[0], expected[0])
        compare(f"sums, {name}", found[1], expected[1])
        compare(f"gradient, {name}", held.grad, whole.grad[own])

    for size in (1, 1 << 25):  # columns one by one, unless the rows of a process are larger
        with patch.object(graph_shard, "BUFFER_BYTES", size):
            compare_all(str(size), part, dense)
    other = dense * torch.rand(total, total).double()
    edges = part.edges
    weighed = part.weigh(other[row, column][edges.first : edges.stop].contiguous())
    compare_all("weighed", weighed, other)
    return errors


def _moments(step: OptimizerStep) -> list[int]:
    """The shape of the first moment of the table."""
    if isinstance(step.optimizer, RowAdam):
        return list(step.optimizer.first.shape)
    weight = (step.phase.table or step.phase.shardable).weight
    return list(step.optimizer.state[weight]["exp_avg"].shape)


def _written(
    model: nn.Module, steps: Sequence[OptimizerStep], tables: ShardedTables, processes: Processes
) -> dict[str, Any]:
    """The weights and states of optimizers and phases as a checkpoint holds them, on rank 0."""
    optimizers, phases = {}, {}
    for step in steps:
        of_optimizer, of_phase = step.optimizer.tensors()[0], step.phase.state()
        optimizers |= {f"{step.phase.name}.{k}": v for k, v in of_optimizer.items()}
        phases |= {f"{step.phase.name}.{k}": v for k, v in of_phase.items()}
    groups = tables.whole(
        {"weights": model.state_dict(), "optimisers": optimizers, "phases": phases}
    )
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


def main(
    device: str = "cpu", further: Callable[[Processes], dict[str, Any]] = lambda _: {}
) -> None:
    torch.set_num_threads(1)
    with Processes.join(device, DistributedOptions(timeout=60, heartbeat=20)) as processes:
        found = {name: train(name, processes) for name in MODELS}
        found["table losses"] = table_losses(processes)
        found["graph products"] = graph_products(processes)
        found["requested rows"] = requested_rows(processes)
        found["skipped"] = {
            name: skipped(name, processes) for name in ("sasrec-bce", "bprmf", "kgat")
        }
        found |= further(processes)
    (OUT / f"{processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

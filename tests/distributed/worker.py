"""A process of the tests of several processes: ``python -m tests.distributed.worker OUT``.

Every part runs on all ranks; what it finds goes to ``OUT/<rank>.json``, weights beside it.
"""

from __future__ import annotations

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import nn

from hasten.build import build_model, load_data
from hasten.config import DistributedOptions, InteractionOptions, TrainingOptions
from hasten.config_loading.build import build_config
from hasten.data.interactions.load import load_dataset
from hasten.distributed.all_reduce import GradientAllReduce
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import (
    merged_ranks,
    require_same_checksums,
    require_same_data,
    require_same_weights,
    shared_checkpoint,
)
from hasten.errors import ConfigurationError, HastenError
from hasten.ops.ranking.rank_all import RankCounts
from hasten.runs.checkpoint import Checkpoint
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers import row_adam
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, ModelCase, sequences
from tests.training.stubs import ConvolutionalScorer, TwoDenominators, TwoPhaseGraph

CPU = torch.device("cpu")
#: optimiser steps; a busy machine makes every exchange of many small ones wait
STEPS = {"sasrec-ce": 200, "two-phase": 200}
FEWER_STEPS = 20
BATCH = 7  # does not divide the users, nor the processes


def dataset(users: int = 50):
    return load_dataset(InteractionOptions(), 0, sequences(users))


def contract(case: ModelCase):
    """A model of the contract suite in float64, without what depends on the layout."""

    def build() -> tuple[nn.Module, list[Any]]:
        settings = {"training.batch_size": BATCH, **case.settings, **case.without_dropout}
        config = build_config(case.model, None, None, (), settings)
        data = load_data(config, case.data)
        model = build_model(config, data, CPU).double()
        return model, list(model.phases(data, config.training))

    return build


def stub(kind: type[nn.Module]):
    def build() -> tuple[nn.Module, list[Any]]:
        model = kind().double()
        return model, model.phases()

    return build


#: cases again, with few rows of a table updated in a step
BY_ROWS = {f"{label}-by-rows": label for label in ("kgat", "sasrec-sampled-softmax")}
MODELS = {
    **{case.label: contract(case) for case in CASES if case.trains},
    **{
        name: contract(next(case for case in CASES if case.label == label))
        for name, label in BY_ROWS.items()
    },
    "two-phase": stub(TwoPhaseGraph),
    "two-denominators": stub(TwoDenominators),
    "convolutional": stub(ConvolutionalScorer),
}


def names(world: int) -> list[str]:
    """The models that so many processes train: all in two, one case of each in more."""
    if world == 2:
        return list(MODELS)
    first = {case.model: case.label for case in reversed(CASES) if case.trains}
    others = set(MODELS) - {case.label for case in CASES}
    return [name for name in MODELS if name in {*first.values(), *others}]


def train(
    name: str, processes: Processes, steps: int | None = None, **options: Any
) -> tuple[nn.Module, list[dict[str, float]], list[tuple[int, int, int]]]:
    """The model after so many steps, the losses of each, and the (phase, epoch, id) of this rank's
    share."""
    torch.manual_seed(5)
    model, phases = MODELS[name]()
    shard = DataParallelRank(processes.rank, processes.world)
    training = TrainingOptions(clip_norm=5.0, **options)
    with patch.object(
        row_adam,
        "MIN_TABLE_TO_READ_RATIO",
        1 if name in BY_ROWS else row_adam.MIN_TABLE_TO_READ_RATIO,
    ):
        made = [
            OptimizerStep(phase, n, training, Precision("fp32", CPU), shard, CPU, processes)
            for n, phase in enumerate(phases)
        ]
    assert any(isinstance(step.optimizer, row_adam.RowAdam) for step in made) == (name in BY_ROWS)
    losses, seen = [], []
    epoch = 0
    while len(losses) < (steps or STEPS.get(name, FEWER_STEPS)):
        for number, step in enumerate(made):
            step.phase.start_epoch(0, epoch)
            for index in range(step.phase.steps()):
                batch = step.phase.plan(0, epoch, index)
                for micro in range(training.accumulate):
                    part = shard.rank * training.accumulate + micro
                    ids = batch.micro_batch_ids(part, shard.world_size * training.accumulate)
                    seen += [(number, epoch, row) for row in ids.tolist()]
                values = step(batch, 1e-3)
                losses.append({key: float(value) for key, value in values.items()})
            step.phase.end_epoch(0, epoch)
        epoch += 1
    return model, losses, seen


def message(function: Any) -> list[Any]:
    """What a function raises, and whether all raise it."""
    try:
        function()
    except HastenError as error:
        return [type(error).__name__, error.code, error.exit_code, error.agreed, str(error)]
    return ["nothing"]


def collectives(processes: Processes) -> dict[str, Any]:
    rank = processes.rank

    def refuse() -> None:
        raise ConfigurationError(f"refused by {rank}")

    def only_last() -> int:
        if rank == processes.world - 1:
            refuse()
        return rank

    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    same = nn.Linear(3, 2)
    for parameter in same.parameters():
        nn.init.ones_(parameter)
    ranks = RankCounts.of(torch.tensor([rank, 0]), torch.tensor([1, 1]))
    merged = merged_ranks(processes, ranks)
    assert merged is not None
    return {
        "gathered": processes.gather({"rank": rank, "text": "é" * rank}),
        "run_on_rank0": processes.run_on_rank0(lambda: {"value": [rank, None, 0.1]}),
        "sum": processes.sum_(torch.tensor([1.0, rank]), "a sum").tolist(),
        "refused_by_rank0": message(lambda: processes.run_on_rank0(refuse)),
        "refused_by_last": message(lambda: processes.run_on_all_ranks("a test", only_last)),
        "refused_by_all": message(lambda: processes.run_on_all_ranks("a test", refuse)),
        "run_on_all_ranks": processes.run_on_all_ranks("a test", lambda: rank),
        "other_weights": message(lambda: require_same_weights(processes, model, "now")),
        "other_checksums": message(lambda: require_same_checksums(processes, model, "now")),
        "same_weights": message(lambda: require_same_weights(processes, same, "now")),
        "same_checksums": message(lambda: require_same_checksums(processes, same, "now")),
        "other_data": message(lambda: require_same_data(processes, dataset(50 + rank))),
        "same_data": message(lambda: require_same_data(processes, dataset())),
        "merged": [merged.higher.tolist(), merged.tied.tolist()],
        "stopped": merged_ranks(processes, None if rank == 1 else ranks) is None,
    }


def checkpoint(processes: Processes) -> dict[str, Any]:
    """A checkpoint that only the first has, on all."""
    tensors = {
        "weights": {
            "a": torch.randn(3, 4),
            "scalar": torch.tensor(2.5, dtype=torch.float64),
            "empty": torch.empty(0, 3),
            "bf16": torch.randn(5).bfloat16(),
        },
        "optimisers": {"step": torch.arange(3), "flag": torch.tensor([True, False])},
    }
    state = {"loss": 0.1 + 0.2, "nan": math.nan, "deep": [1, {"x": None}]}
    own = Checkpoint(Path("x"), tensors, state) if processes.is_rank0 else None
    found = shared_checkpoint(processes, lambda: own)
    assert found is not None
    shown = {
        f"{group}.{name}": [str(t.dtype), list(t.shape), t.double().flatten().tolist()]
        for group, named in found.tensors.items()
        for name, t in named.items()
    }
    none = shared_checkpoint(processes, lambda: None) is None
    return {"tensors": shown, "state": repr(found.state), "none": none, "path": str(found.path)}


def poisoned(processes: Processes) -> dict[str, Any]:
    """A NaN on the last process alone: no byte may change on any."""
    found: dict[str, Any] = {}
    for name in ("fp32", "fp16"):
        torch.manual_seed(0)
        model, phases = stub(TwoDenominators)()
        model, (phase,) = model.float(), phases
        shard = DataParallelRank(processes.rank, processes.world)
        options = TrainingOptions(clip_norm=1.0)
        step = OptimizerStep(phase, 0, options, Precision(name, CPU), shard, CPU, processes)
        for index in range(2):
            step(phase.plan(0, 0, index), 0.01)
        before = _bytes(model, step)
        original = phase.terms
        if processes.rank == processes.world - 1:

            def bad(*arguments, original=original):
                first, *others = original(*arguments)
                return [
                    type(first)(first.name, first.numerator * math.nan, first.denominator),
                    *others,
                ]

            phase.terms = bad
        losses = step(phase.plan(0, 0, 2), 0.01)
        phase.terms = original
        found[name] = {
            "unchanged": _bytes(model, step) == before,
            "bad": int(step.consecutive_nonfinite_steps),
            "losses": {term: float(value) for term, value in losses.items()},
        }
        step(phase.plan(0, 1, 0), 0.01)
        found[name]["goes_on"] = _bytes(model, step) != before
    return found


def _bytes(model: nn.Module, step: OptimizerStep) -> bytes:
    tensors = [p.detach() for p in model.parameters()]
    tensors += list(step.optimizer.tensors()[0].values())
    return b"".join(t.numpy().tobytes() for t in tensors)


def control_flags(processes: Processes) -> list[float]:
    """The control flags of the other processes arrive with the gradients."""
    torch.manual_seed(0)
    _, (phase,) = stub(TwoDenominators)()
    shard = DataParallelRank(processes.rank, processes.world)
    precision = Precision("fp32", CPU)
    step = OptimizerStep(phase, 0, TrainingOptions(), precision, shard, CPU, processes)
    step(
        phase.plan(0, 0, 0), 0.01, (0.0, float(processes.rank == 1), float(processes.is_rank0), 0.0)
    )
    assert step.summed_control_flags is not None
    return step.summed_control_flags.tolist()


def union_in_a_thread(processes: Processes) -> list[int]:
    """A union that comes before another collective on the first process, and after it elsewhere."""
    every = GradientAllReduce(processes)
    assert every.union_for_batches() is every.union  # of a CPU, which takes batches in turn
    own = torch.arange(processes.rank, 40, 3 + processes.rank)
    with patch.object(processes, "device", torch.device("cuda")):
        union = every.union_for_batches()
    begun, said = Event(), processes.all_gather

    def all_gather(*arguments: Any) -> Any:
        begun.set()
        return said(*arguments)

    with patch.object(processes, "all_gather", all_gather), ThreadPoolExecutor(1) as pool:
        if processes.is_rank0:
            found = pool.submit(union, own)
            begun.wait()
            sleep(0.2)  # until it waits for the others
        ranks = processes.gather(processes.rank)
        if not processes.is_rank0:
            found = pool.submit(union, own)
        return [*ranks, *found.result().tolist()]


def alone(processes: Processes) -> nn.Module:
    """Training as it would be if gradients were not exchanged."""
    with patch.object(Processes, "sum_", lambda _self, tensor, _what: tensor):
        model, _, _ = train("sasrec-ce", processes, 10)
    return model


def main(out: Path) -> None:
    torch.set_num_threads(1)
    with Processes.join("cpu", DistributedOptions(timeout=60, heartbeat=20)) as processes:
        found: dict[str, Any] = {
            "collectives": collectives(processes),
            "checkpoint": checkpoint(processes),
            "poisoned": poisoned(processes),
            "control_flags": control_flags(processes),
            "union": union_in_a_thread(processes),
            "training": {},
        }
        for name in names(processes.world):
            model, losses, seen = train(name, processes)
            save_file(model.state_dict(), out / f"{name}-{processes.rank}.safetensors")
            found["training"][name] = {"losses": losses, "seen": seen}
        model, losses, _ = train("sasrec-ce", processes, FEWER_STEPS, accumulate=3)
        save_file(model.state_dict(), out / f"accumulated-{processes.rank}.safetensors")
        found["training"]["accumulated"] = {"losses": losses}
        save_file(alone(processes).state_dict(), out / f"alone-{processes.rank}.safetensors")
    (out / f"{processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What one process plans of a step, by the number of processes that share its global batch.

    python -m bench.planning --processes 1 8 64

No processes are started: this one prepares its part of steps as the first of so many would, up to
the tensors that the model reads. Counted, for a step: random numbers that are drawn, ids that are
sorted to find the distinct ones, and distinct ids that it sends to the others, where a step needs
the rows that all processes read. CPU milliseconds are the smallest of five. *union*: to find the
distinct ones among as many lists as there are processes. *requests*: if the tables are sharded, to
ask the holders for these rows, and to find the rows that all processes ask the first one for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from bench.pieces_of_a_step import draw
from hasten import arrays
from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.distributed.processes import Processes
from hasten.distributed.row_requests import RowRequests
from hasten.distributed.row_shard import RowShard
from hasten.objectives import pair_rows, sampled_softmax, step_rows
from hasten.objectives.base import Batch, Phase
from hasten.objectives.prefetch import batch_inputs
from hasten.ops import random

CPU = torch.device("cpu")
ITEMS, USERS, EVENTS, TRIPLES, REPEATS = 200_000, 40_000, 21, 400_000, 5
#: model, settings and data by name
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "sasrec ce": ("sasrec", {"model.loss": "ce", "training.batch_size": 8192}, "events"),
    "sasrec sampled-softmax": (
        "sasrec",
        {"model.loss": "sampled-softmax", "model.negatives": 2048, "training.batch_size": 8192},
        "events",
    ),
    "sasrec sampled-softmax, mixed": (
        "sasrec",
        {
            "model.loss": "sampled-softmax",
            "model.negatives": 2048,
            "model.sampling": "mixed",
            "training.batch_size": 8192,
        },
        "events",
    ),
    "complex sampled": (
        "complex",
        {"model.loss": "sampled", "model.negatives": 32, "training.batch_size": 1024},
        "triples",
    ),
    "complex 1-n-softmax": (
        "complex",
        {"model.loss": "1-n-softmax", "training.batch_size": 8192},
        "triples",
    ),
    "bprmf": ("bprmf", {"training.batch_size": 16384}, "events"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| phase | processes | drawn | sorted | sent | CPU ms | union, CPU ms | requests, CPU ms |"
    )
    print("| --- " * 8 + "|")
    data = {"events": events(), "triples": triples()}
    for name, (model, settings, kind) in CASES.items():
        config = build_config(model, None, None, (), {**settings, "model.width": 4})
        dataset = load_data(config, data[kind])
        net = build_model(config, dataset, CPU).train()
        (phase,) = net.phases(dataset, config.training)
        for processes in options.processes:
            print(
                f"| {name} | {processes} | {' | '.join(measured(phase, processes))} |", flush=True
            )


def events() -> dict[str, Any]:
    """Each user has as many events of skewed items."""
    items = draw(np.random.default_rng(0), ITEMS, 2 / 3, USERS * EVENTS)
    items[:ITEMS] = np.random.default_rng(1).permutation(ITEMS)  # each at least once
    user = np.repeat(np.arange(USERS), EVENTS)
    return {"user_id": user, "item_id": items, "timestamp": np.arange(len(user))}


def triples() -> dict[str, Any]:
    """Skewed heads, uniform tails."""
    generator = np.random.default_rng(0)
    head = draw(generator, ITEMS, 2 / 3, TRIPLES)
    head[:ITEMS] = np.arange(ITEMS)
    relation = generator.integers(0, 200, TRIPLES)
    return {"head": head, "relation": relation, "tail": generator.integers(0, ITEMS, TRIPLES)}


def measured(phase: Phase, processes: int) -> list[str]:
    """The cells of a row."""
    counts, found = {"drawn": 0, "sorted": 0}, []
    with (
        patch.object(random, "bits", _counting(counts, "drawn", random.bits)),
        patch.object(step_rows, "distinct", _counting(counts, "sorted", arrays.distinct)),
        patch.object(pair_rows, "distinct", _counting(counts, "sorted", arrays.distinct)),
        patch.object(sampled_softmax, "distinct", _counting(counts, "sorted", arrays.distinct)),
    ):
        prepare(phase, phase.plan(0, 0, 0), 0, processes)  # with the permutations of the epoch
        counts.update(drawn=0, sorted=0)
        rows = prepare(phase, phase.plan(0, 0, 1), 0, processes)
    for number in range(REPEATS):
        prepare(phase, phase.plan(0, 1 + number, 0), 0, processes)
        begin = time.process_time()
        prepare(phase, phase.plan(0, 1 + number, 1), 0, processes)
        found.append(time.process_time() - begin)
    lists: list[torch.Tensor] = []

    def send(ids: torch.Tensor) -> torch.Tensor:
        lists.append(ids)
        return ids

    union = asked = 0.0
    if rows is not None and processes > 1:
        phase.union = send
        for rank in range(processes):
            prepare(phase, phase.plan(0, 0, 1), rank, processes)
        phase.union = None
        together = torch.cat(lists).numpy()
        begin = time.process_time()
        arrays.distinct(together)
        union = time.process_time() - begin
        assert phase.table is not None
        asked = requests([len(weight) for weight in phase.table.weights], lists)
    cells = [counts["drawn"], counts["sorted"], len(lists[0]) if lists else 0]
    times = (min(found), union, asked)
    return [*(f"{each:,}" for each in cells), *(f"{1e3 * each:.2f}" for each in times)]


class FirstOf(Processes):
    """The first of several processes, which gets the messages of all without any of them."""

    def __init__(self, world: int) -> None:
        super().__init__(CPU)
        self.world = world
        self.sent: list[torch.Tensor] = []
        self.answer: torch.Tensor | None = None

    def all_to_all(
        self, tensor: torch.Tensor, given: list[int], taken: list[int], what: str
    ) -> torch.Tensor:
        self.sent.append(tensor[:1])
        return tensor if self.answer is None else self.answer


def requests(lengths: Sequence[int], lists: Sequence[torch.Tensor]) -> float:
    """CPU seconds of a process that asks for the first of these rows, and is asked by all."""
    processes, found = FirstOf(len(lists)), []
    ask = RowRequests(processes, [RowShard(processes, length).bounds for length in lengths])
    ask.space = max(map(len, lists))
    for ids in lists:
        ask(ids)
    most = max(int(message[0, 0]) for message in processes.sent)
    ask.space = most * 5 // 4
    processes.answer = torch.cat(processes.sent)[:, [*range(2 + ask.space), -1]]
    processes.answer[:, 1] = most
    for _ in range(REPEATS):
        begin = time.process_time()
        ask(lists[0])
        found.append(time.process_time() - begin)
    return min(found)


def prepare(phase: Any, batch: Batch, rank: int, processes: int) -> torch.Tensor | None:
    """The inputs of a process; the rows that it reads, if the step reads a table by rows."""
    numbers = range(rank, rank + 1)
    batch = batch.for_process(numbers, processes)
    parts = batch.micro_batches(numbers, processes)
    read = None if phase.table is None else phase.table.read(batch)
    if isinstance(phase, step_rows.StepRows) and phase.table is not None:
        for _, ids in parts:
            phase.cached_micro_batch(batch, ids)
    else:
        batch_inputs(phase, batch, parts)
    return read


def _counting(counts: dict[str, int], name: str, function: Callable[..., Any]) -> Any:
    def counted(*arguments: Any) -> Any:
        counts[name] += arguments[-1].numel() if name == "drawn" else len(arguments[0])
        return function(*arguments)

    return counted


if __name__ == "__main__":
    main()

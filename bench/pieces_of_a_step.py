"""The pieces of a training step of SASRec that :mod:`bench.cluster_estimate` adds up, measured.

Two steps that differ only in their number of targets: what they differ by is the piece of a
target. FLOPs and bytes are counted, so they are the same in every run; seconds are the smallest CPU
seconds of some repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bench.gpu_steps import Traffic
from hasten.arrays import Int64
from hasten.config import TrainingOptions
from hasten.data.tables import Histories
from hasten.distributed.row_requests import asked_for
from hasten.models.interface import Sizes
from hasten.models.sequential.sasrec import SASRec, SASRecOptions
from hasten.objectives.sampled_softmax import SampledSoftmaxPhase
from hasten.ops.random import permutation
from hasten.ops.table import EmbeddingTable
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

ITEMS, SMALL, LARGE = 20_000, 128, 256
#: of the plans: so many that rows are sorted and gathered from memory, as in the estimate
PLANNED_ITEMS, PLANNED_USERS, REPEATS = 1_000_000, 16_384, 5
#: processes that ask, and users of an epoch that are shuffled
LISTS, SHUFFLED = 8, 4_000_000
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pieces:
    """What the parts of a step take, and bytes of the data.

    Of a target: flops; moved_bytes, read and written by operations; kept_bytes, for the backward
    pass; plan_seconds, in which a process finds the rows that its own examples read. Of a user of
    the global batch: order_seconds, in which each process sorts the users by length; and
    shuffle_seconds, once in an epoch, for the order of all users. request_seconds: of each id that
    processes ask a holder of rows for. dense_parameters: all but the item table. store_bytes: of an
    event. user_bytes, item_bytes: of arrays on the host, in each process.
    """

    flops: float
    moved_bytes: float
    kept_bytes: float
    plan_seconds: float
    order_seconds: float
    shuffle_seconds: float
    request_seconds: float
    dense_parameters: int
    store_bytes: float = 4.0
    user_bytes: float = 56.0
    item_bytes: float = 8.0
    how: str = (
        f"steps of {SMALL} and {LARGE} users, {ITEMS:,} items, operations as on a CPU; plans of "
        f"{PLANNED_USERS:,} users and {PLANNED_ITEMS:,} items, requests of {LISTS} processes, an "
        f"order of {SHUFFLED:,} users, one thread; a store has 4 bytes for "
        "an event, and 8 for its time, which SASRec does not read; a user has four bounds, a "
        "number, a number of targets and a place in the permutation; an item how often it is drawn"
    )


def measure_pieces(
    width: int, length: int, blocks: int, negatives: int, popularity: float
) -> Pieces:
    """Run steps of users with ``length`` targets each."""
    steps = {
        users: StepAtSize(users, ITEMS, width, length, blocks, negatives, popularity)
        for users in (SMALL, LARGE)
    }
    planned = StepAtSize(PLANNED_USERS, PLANNED_ITEMS, 1, length, 1, negatives, popularity)

    def of_a_target(measure: Callable[[StepAtSize], float]) -> float:
        small, large = (measure(step) for step in steps.values())
        return (large - small) / ((LARGE - SMALL) * length)

    table, everything = steps[SMALL].parameters()
    return Pieces(
        flops=of_a_target(StepAtSize.flops),
        moved_bytes=of_a_target(StepAtSize.moved_bytes),
        kept_bytes=of_a_target(StepAtSize.kept_bytes),
        plan_seconds=smallest(planned.plan) / (PLANNED_USERS * length),
        order_seconds=smallest(planned.order) / PLANNED_USERS,
        shuffle_seconds=smallest(lambda _: permutation(SHUFFLED, 1)) / SHUFFLED,
        request_seconds=planned.request_seconds(),
        dense_parameters=everything - table,
    )


class StepAtSize:
    """One step of so many users, with ``length`` targets each."""

    def __init__(
        self,
        users: int,
        items: int,
        width: int,
        length: int,
        blocks: int,
        negatives: int,
        popularity: float,
    ) -> None:
        drawn = draw(np.random.default_rng(0), items, popularity, users * (length + 1))
        histories = Histories(np.arange(users + 1) * (length + 1), drawn)
        options = SASRecOptions(
            width=width, blocks=blocks, max_length=length, loss="sampled-softmax",
            negatives=negatives,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = SASRec(options, Sizes(users=users, items=items)).train()
        training = TrainingOptions(batch_size=users)
        phase = self.model.next_item_phase(histories, training)
        assert isinstance(phase, SampledSoftmaxPhase)
        self.phase = phase
        self.step = OptimizerStep(
            phase, 0, training, Precision("fp32", _CPU), DataParallelRank(), _CPU
        )

    def take(self, epoch: int = 0) -> None:
        self.step(self.phase.plan(0, epoch, 0), 1e-3)

    def flops(self) -> float:
        with FlopCounterMode(display=False) as counted:
            self.take()
        return float(counted.get_total_flops())

    def moved_bytes(self) -> float:
        with Traffic() as traffic:
            self.take()
        return float(traffic.bytes)

    def kept_bytes(self) -> float:
        kept: dict[int, int] = {}
        parameters = {p.untyped_storage().data_ptr() for p in self.model.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        batch = self.phase.plan(0, 0, 0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            terms: Any = self.phase.terms(self.phase.encode(batch), batch, batch.ids)
        assert terms
        return float(sum(kept.values()))

    def order(self, number: int) -> None:
        """Plan a batch, in the order of users that :func:`smallest` does not count."""
        self.phase.plan(0, 0, number % self.phase.steps())

    def plan(self, number: int) -> None:
        """Find the rows that a batch reads, another each time."""
        batch = self.phase.plan(0, 0, 0)
        self.phase.read(replace(batch, index=number))

    def request_seconds(self) -> float:
        """CPU seconds for each id in which a holder finds its rows, asked for by many processes."""
        batch = self.phase.plan(0, 0, 0)
        parts = [batch.for_process(range(rank, rank + 1), LISTS) for rank in range(LISTS)]
        together = np.concatenate([self.phase.read(part).numpy() for part in parts])
        return smallest(lambda _: asked_for(together)) / len(together)

    def parameters(self) -> tuple[int, int]:
        """Those of the item table, and all."""
        assert isinstance(self.model.items, EmbeddingTable)
        every = sum(p.numel() for p in self.model.parameters())
        return self.model.items.weight.numel(), every


def smallest(work: Callable[[int], object]) -> float:
    """The smallest CPU seconds of some calls, with other numbers, after one that is not counted."""
    found = []
    for number in range(1 + REPEATS):
        begin = time.process_time()
        work(number)
        found.append(time.process_time() - begin)
    return min(found[1:])


def draw(generator: np.random.Generator, items: int, exponent: float, count: int) -> Int64:
    """int64 [count] items with ``p(i) ~ (i + 1)^-exponent``."""
    cumulated = np.cumsum(np.arange(1, items + 1) ** -exponent)
    drawn: Int64 = np.searchsorted(cumulated, generator.random(count) * cumulated[-1])
    return drawn

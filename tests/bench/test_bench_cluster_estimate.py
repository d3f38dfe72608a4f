"""The arithmetic of the estimate, against small runs and direct counting."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from bench import cluster_estimate, pieces_of_a_step
from bench.cluster_estimate import (
    Hardware,
    Workload,
    estimate,
    evaluation_bytes,
    expected_distinct,
    gpu_bytes,
    host_bytes,
    rows_read,
    seconds,
    sent_bytes,
)
from bench.pieces_of_a_step import Pieces, StepAtSize, draw, measure_pieces
from hasten.config import InteractionOptions, TrainingOptions
from hasten.data.event_store.opened import open_store
from hasten.data.event_store.prepare import prepare
from hasten.data.tables import TRAIN
from hasten.distributed.all_reduce import GradientAllReduce
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import merged_ranks
from hasten.distributed.row_shard import RowShard
from hasten.distributed.row_union import RowUnion
from hasten.objectives.next_item import NextItemPhase
from hasten.ops.permutations import LastValueCache, cached_permutation
from hasten.ops.ranking.rank_all import RankCounts
from hasten.ops.sharded_table import ShardedTable
from hasten.ops.table import EmbeddingTable
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.optimizers.row_adam import RowAdam

ITEMS, WIDTH, LENGTH = 3000, 16, 10
WORK = Workload(
    events=60_000, items=ITEMS, events_of_a_user=LENGTH, width=WIDTH, blocks=1, batch=40,
    negatives=100,
)  # fmt: skip
PIECES = Pieces(
    flops=1e5, moved_bytes=1e4, kept_bytes=1e3, plan_seconds=1e-7, order_seconds=1e-8,
    shuffle_seconds=1e-6, request_seconds=2e-8, dense_parameters=500,
)  # fmt: skip


@pytest.fixture
def single_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("exponent", [0.0, 2 / 3, 1.2])
@pytest.mark.parametrize("draws", [50, 4000, 30_000])
def test_distinct_items_are_those_of_a_simulation(exponent, draws):
    generator = np.random.default_rng(0)
    counted = [len(np.unique(draw(generator, ITEMS, exponent, draws))) for _ in range(200)]
    assert expected_distinct(ITEMS, exponent, draws) == pytest.approx(np.mean(counted), rel=0.02)


def test_the_sum_over_items_is_the_exact_one():
    share = np.arange(1, 10**6 + 1) ** -0.8
    share /= share.sum()
    exact = np.sum(1 - (1 - share) ** 30_000)
    assert expected_distinct(10**6, 0.8, 30_000) == pytest.approx(exact, rel=1e-3)


def test_rows_of_a_step_grow_with_the_gpus_up_to_the_table():
    rows = [rows_read(WORK, gpus) for gpus in (1, 4, 16, 10**6)]
    assert rows[0][0] == rows[0][1] == rows[3][1]
    assert rows[0][0] < rows[1][0] < rows[2][0] < rows[3][0] == ITEMS


def test_memory_of_tables_is_what_optimizers_hold():
    weight = nn.Parameter(torch.zeros(ITEMS, WIDTH))
    table = TableRows(weight, lambda _: torch.arange(5), 5)
    by_rows = RowAdam([weight], TrainingOptions(), table)
    held = gpu_bytes(WORK, PIECES, "sharded", 1)
    assert held["weights"] == weight.nbytes + by_rows.updated_to.nbytes
    assert held["moments"] == by_rows.first.nbytes + by_rows.second.nbytes
    dense = PhaseAdam([weight], TrainingOptions())
    weight.grad = torch.ones_like(weight)
    dense.step()
    found = gpu_bytes(WORK, PIECES, "whole", 1)
    assert found["weights"] == weight.nbytes
    moments = (value.nbytes for name, value in dense.state[weight].items() if name != "step")
    assert found["moments"] == sum(moments)
    assert found["gradients"] == weight.grad.nbytes + 4 * 4 * PIECES.dense_parameters


class Counting(Processes):
    """One of several processes, whose collectives only count their bytes."""

    joined = True

    def __init__(self, world: int) -> None:
        super().__init__(torch.device("cpu"))
        self.world, self.summed, self.spread = world, 0, 0

    def sum_(self, tensor, what):
        self.summed += tensor.nbytes
        return tensor

    def broadcast_(self, tensor, what, source=0):
        self.spread += tensor.nbytes
        return tensor

    def all_gather(self, tensor, what, _group=None):
        self.spread += tensor.nbytes
        return tensor.repeat(self.world, 1)

    def all_to_all(self, tensor, given, taken, what):
        self.spread += tensor.nbytes
        return tensor[:1].expand(sum(taken), *tensor.shape[1:])

    def gather(self, value, what=""):
        return [value] * self.world


@pytest.mark.parametrize("world", [2, 3])
def test_sent_bytes_are_those_of_the_collectives(world, monkeypatch):
    others = (world - 1) / world
    weight = nn.Parameter(torch.zeros(ITEMS, WIDTH))
    dense = nn.Parameter(torch.zeros(PIECES.dense_parameters))
    rows = torch.arange(0, ITEMS, 7)
    monkeypatch.setattr(cluster_estimate, "rows_read", lambda *_: (len(rows), len(rows) / world))

    def summed(*parameters, rows=MappingProxyType({})):
        processes = Counting(world)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        GradientAllReduce(processes)(parameters, {}, (), (), rows)
        return 2 * others * processes.summed

    whole = sent_bytes(WORK, PIECES, "whole", world)
    ids = whole.pop("ids")
    assert sum(whole.values()) == pytest.approx(summed(weight, dense, rows={0: rows}))
    processes, own = Counting(world), rows[: len(rows) // world]
    RowUnion(processes)(own)
    # sent to all others, with space for a quarter more, after the number alone and with it
    assert ids == (world - 1) * 8 * len(rows) / world
    assert processes.spread == 8 * (2 + len(own) * 5 // 4)
    with monkeypatch.context() as many:
        many.setattr(cluster_estimate, "rows_read", lambda *_: (ITEMS / 2, ITEMS / world))
        dense_bytes = sent_bytes(WORK, PIECES, "whole", world)
        assert dense_bytes["rows"] + dense_bytes["dense"] == pytest.approx(summed(weight, dense))
    sharded = sent_bytes(WORK, PIECES, "sharded", world)
    assert sharded["dense"] == pytest.approx(summed(dense))
    processes = Counting(world)
    ask = RowShard(processes, ITEMS).requests()
    # as many of each process
    own = torch.cat([torch.arange(len(rows) // world**2) + first * ITEMS // world
                     for first in range(world)])  # fmt: skip
    monkeypatch.setattr(cluster_estimate, "rows_read", lambda *_: (len(rows), len(own)))
    ask(own)
    processes.spread = 0
    requested = ask(own)
    sharded = sent_bytes(WORK, PIECES, "sharded", world)
    # of each message three numbers that are no ids, and a quarter that is rounded
    assert sharded["ids"] == pytest.approx(others * processes.spread, abs=world * 8 * 4)
    processes.spread = 0
    requested.sum_back(requested.fetch(torch.zeros(len(requested.rows), WIDTH)))
    assert sharded["rows"] == pytest.approx(others * processes.spread)


@pytest.mark.parametrize("world", [2, 3])
def test_bytes_of_an_evaluation_are_those_of_the_collectives(world):
    users, others = 7, (world - 1) / world
    processes = Counting(world)
    merged_ranks(processes, RankCounts.of(*torch.zeros(2, users, dtype=torch.int64)))
    counts = 2 * others * (processes.summed - 4)  # but whether one was stopped
    assert evaluation_bytes(WORK, "whole", users, world) == pytest.approx(counts)
    table = EmbeddingTable(ITEMS, WIDTH)
    ShardedTable.shard_weight(table, RowShard(processes, ITEMS))
    with torch.no_grad():
        table.rows(torch.arange(users * LENGTH))
    exchanged = counts + others * processes.spread
    assert evaluation_bytes(WORK, "sharded", users, world) == pytest.approx(exchanged)


def test_pieces_of_a_target_add_up_to_steps_of_another_size(single_thread, monkeypatch):
    monkeypatch.setattr(pieces_of_a_step, "ITEMS", ITEMS)
    monkeypatch.setattr(pieces_of_a_step, "PLANNED_ITEMS", ITEMS)
    monkeypatch.setattr(pieces_of_a_step, "PLANNED_USERS", 300)
    monkeypatch.setattr(pieces_of_a_step, "SHUFFLED", 3000)
    monkeypatch.setattr(pieces_of_a_step, "SMALL", 64)
    pieces = measure_pieces(WIDTH, LENGTH, 1, 100, 2 / 3)
    step = StepAtSize(512, ITEMS, WIDTH, LENGTH, 1, 100, 2 / 3)
    targets = 512 * LENGTH
    assert pieces.flops * targets == pytest.approx(step.flops(), rel=0.03)
    assert pieces.kept_bytes * targets == pytest.approx(step.kept_bytes(), rel=0.1)
    # products of a block: queries, keys, values, output, two of the feed-forward layer, and the
    # sampled items, forward and twice backward
    products = 6 * (6 * WIDTH**2 + 100 * WIDTH)
    assert products < pieces.flops < 1.3 * products
    assert 0 < pieces.plan_seconds < 1e-2
    assert 0 < pieces.order_seconds < 1e-2
    assert 0 < pieces.request_seconds < 1e-2
    assert 0 < pieces.shuffle_seconds < 1e-2


def test_bytes_of_users_are_those_of_arrays(tmp_path):
    generator = np.random.default_rng(0)
    users = 500
    lines = "\n".join(f"{u},{i},{t}" for t, (u, i) in enumerate(
        zip(np.tile(np.arange(users), 8), generator.integers(0, 90, 8 * users), strict=True)
    ))  # fmt: skip
    (tmp_path / "events.csv").write_text(f"user,item,time\n{lines}\n")
    prepare(InteractionOptions(path=str(tmp_path / "events.csv")), tmp_path / "store")
    data = open_store(tmp_path / "store", InteractionOptions(path=str(tmp_path / "store")))
    model = nn.Linear(1, 1)
    phase = NextItemPhase(
        model, data.histories(TRAIN), item_count=90, batch_size=50, max_length=5, negative_count=0
    )
    bounds = {id(bound): bound for bound in data.bounds}.values()
    arrays = [*bounds, phase.users, phase.target_counts]
    arrays.append(cached_permutation(LastValueCache(), phase.count, 0, 0).numpy())
    assert sum(array.nbytes for array in arrays) == PIECES.user_bytes * users
    assert data.item.nbytes == PIECES.store_bytes * 8 * users
    needs = host_bytes(Workload(events=8 * users, items=90, events_of_a_user=8), PIECES, local=2)
    assert needs["arrays of users"] == 2 * PIECES.user_bytes * users


def test_seconds_of_an_epoch():
    hardware = Hardware()
    found = estimate(WORK, PIECES, hardware, "sharded", 16)
    assert found["steps"] == 10  # 6,000 users by 640
    parts = found["seconds"]
    own = rows_read(WORK, 16)[1]
    assert parts["plan"] == pytest.approx(1e-7 * 40 * LENGTH + 1e-8 * 640)
    assert parts["requests"] == pytest.approx(2e-8 * own)
    assert estimate(WORK, PIECES, hardware, "whole", 16)["seconds"]["requests"] == 0
    assert seconds(parts) >= parts["exchange"] + parts["requests"]
    assert parts["launches"] == pytest.approx(146 * 5e-6)
    assert parts["exchange"] == pytest.approx(sum(found["sent_bytes"].values()) / 50e9)
    assert found["shuffle_seconds"] == pytest.approx(1e-6 * 6000)
    assert found["epoch_seconds"] == pytest.approx(10 * seconds(parts) + 1e-6 * 6000)
    assert seconds({**parts, "plan": 5.0}) == 5.0
    slow = estimate(WORK, PIECES, Hardware(memory=1e5), "sharded", 16)
    assert slow["breaks_first"] == "memory of a GPU"
    assert slow["used"]["memory of a GPU"] > 1


def test_the_record_says_what_was_assumed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cluster_estimate, "measure_pieces", lambda *_: PIECES)
    assert cluster_estimate.main(["--events", "1000000", "--gpus", "2"], tmp_path) == 0
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert record["work"]["events"] == 1_000_000
    assert [found["way"] for found in record["estimates"]] == list(cluster_estimate.WAYS)
    assert "network: 5e+10" in path.with_suffix(".md").read_text()
    assert "Assumed of the work" in capsys.readouterr().out

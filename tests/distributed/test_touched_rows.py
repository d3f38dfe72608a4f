"""Gradients of the rows that a step reads, summed in the place of those of whole tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hasten.distributed.processes import Processes
from hasten.distributed.touched_rows import put_rows, touched_rows
from hasten.ops.table_rows import TableRows
from tests.distributed.test_processes import run_workers
from tests.distributed.touched_rows_worker import CPU, MODELS, STEPS, train

FLOAT64 = 8


@pytest.fixture(scope="module", params=[2, 3])
def several(request, tmp_path_factory) -> list[dict[str, Any]]:
    return run_workers(
        request.param, tmp_path_factory.mktemp("rows"), "tests.distributed.touched_rows_worker"
    )


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return {name: train(name, Processes(CPU), 3) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_rows_train_as_whole_tables_and_as_one_process(name, several, alone):
    for found in several:
        for way in ("whole", "rows"):
            assert found[name][way]["weights"] == several[0][name][way]["weights"]
            for key, expected in alone[name]["weights"].items():
                ours = torch.tensor(found[name][way]["weights"][key])
                torch.testing.assert_close(ours, torch.tensor(expected), rtol=1e-6, atol=1e-9)
            for one, other in zip(found[name][way]["losses"], alone[name]["losses"], strict=True):
                assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_of_a_step_are_in_proportion_to_the_rows_that_it_reads(name, several):
    for found in several:
        rows, whole = found[name]["rows"], found[name]["whole"]
        count, width = rows["table"]
        others = rows["parameters"] - count * width
        assert min(rows["read"]) < count / 3
        # the loss, and three requests and a failure, are summed with the gradients
        rest = whole["summed"][0] - FLOAT64 * rows["parameters"]
        assert 0 < rest < 100
        assert whole["summed"] == [whole["summed"][0]] * STEPS
        expected = [
            FLOAT64 * (others + width * (read if 3 * read <= count else count)) + rest
            for read in rows["read"]
        ]
        assert rows["summed"] == expected


def test_a_larger_table_takes_no_more_bytes_for_as_many_rows(several):
    few, more = (several[0][name] for name in MODELS)
    of_a_row = FLOAT64 * few["rows"]["table"][1]
    assert sum(more["whole"]["summed"]) > 1.1 * sum(few["whole"]["summed"])
    for a, b, x, y in zip(
        few["rows"]["summed"], more["rows"]["summed"], few["rows"]["read"], more["rows"]["read"],
        strict=True,
    ):  # fmt: skip
        if 3 * x <= few["rows"]["table"][0]:
            assert b - a == of_a_row * (y - x)


def test_a_step_without_memory_on_one_process_is_skipped_on_all(several):
    for found in several:
        assert found["failed"] == several[0]["failed"]
        assert found["failed"]["losses"]["steps"] == 0
        assert found["failed"]["unchanged"]
        assert found["failed"]["failures"] == 1
        assert found["failed"]["goes_on"]


def weights(*counts: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(count, 2)) for count in counts]


def test_rows_of_several_tables_are_numbered_through_them():
    users, other, items = weights(9, 4, 12)
    ids = torch.tensor([1, 5, 9, 10, 11, 12, 13])
    table = TableRows(users, lambda _: ids, 7, others=(items,))
    batch: Any = SimpleNamespace()

    def union(rows):
        raise AssertionError("every process knows all rows")

    found = touched_rows(table, [users, other, items], batch, union)
    assert {n: rows.tolist() for n, rows in found.items()} == {0: [1, 5]}  # five of twelve: whole
    assert touched_rows(table, [other], batch, union) == {}  # the rows are among the parameters
    assert touched_rows(None, [users], batch, union) == {}


@pytest.mark.parametrize("name", MODELS)
def test_each_process_finds_its_rows_and_gets_those_of_the_others(name, several):
    for found in several:
        ways = found[name]["rows"]
        assert ways["union"] == ways["ids"]
    own = [found[name]["rows"]["own"] for found in several]
    for parts, whole in zip(zip(*own, strict=True), ways["ids"], strict=True):
        assert sorted(set().union(*parts)) == whole
    assert sum(map(len, own[0])) < sum(map(len, ways["ids"]))


def test_a_share_without_examples_gets_the_rows_of_the_others():
    (table,) = weights(5)
    put_rows(table, torch.tensor([1, 3]), torch.ones(2, 2))
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == [0, 1, 0, 1, 0]

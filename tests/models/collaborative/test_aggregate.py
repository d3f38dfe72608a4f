"""A graph layer in one function against its parts, forward and backward."""

from __future__ import annotations

import pytest
import torch

from hasten.models.collaborative import aggregate as module
from hasten.models.collaborative.aggregate import aggregate, mix
from hasten.ops.graph.spmm import SparseGraph, spmm
from hasten.ops.graph.spmm_rows import RowEntries, RowPositions, spmm_rows, with_neighbors
from hasten.ops.random import seed_device
from tests.ops.graph.test_spmm import graph
from tests.ops.reference import spmm_reference

AGGREGATORS = ["bi-interaction", "gcn", "graphsage"]
PICKED = torch.tensor([1, 2, 7])


def square() -> SparseGraph:
    return graph(rows=9, columns=9, entries=50)


def matrices(aggregator: str, width: int = 5, out: int = 4, dtype=torch.float64):
    torch.manual_seed(4)
    entering = 2 * width if aggregator == "graphsage" else width
    count = 2 if aggregator == "bi-interaction" else 1
    return [
        (
            torch.randn(out, entering, dtype=dtype, requires_grad=True),
            torch.randn(out, dtype=dtype, requires_grad=True),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("rows", [4, 2048])
def test_equals_its_parts_forward_and_backward(aggregator, rows, monkeypatch):
    monkeypatch.setattr(module, "_ROWS_CPU", rows)
    made, given = square(), matrices(aggregator)
    weights = made.weigh(torch.rand(len(made), dtype=torch.float64))
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(9, 4, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    leaves = [x, *(t for pair in given for t in pair)]

    def gradients(picked, out):
        total = (out * probe[0]).sum() + (picked * probe[1]).sum()
        return torch.autograd.grad(total, leaves)

    ours = aggregate(made, weights, x, PICKED, given, aggregator, 0.2, 0.0)
    theirs = x[PICKED], mix(x, spmm(made, weights, x), given, aggregator, 0.2, 0.0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    for mine, other in zip(gradients(*ours), gradients(*theirs), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_dropout_zeroes_and_scales_and_so_does_its_gradient(aggregator):
    made, given = square(), matrices(aggregator)
    weights = made.weigh(torch.rand(len(made), dtype=torch.float64))
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    plain = aggregate(made, weights, x, PICKED, given, aggregator, 0.2, 0.0)[1]
    seed_device(torch.device("cpu"), 8)
    dropped = aggregate(made, weights, x, PICKED, given, aggregator, 0.2, 0.5)[1]
    kept = dropped != 0
    assert 0.2 < kept.double().mean() < 0.8
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])
    probe = torch.randn(9, 4, dtype=torch.float64)
    (mine,) = torch.autograd.grad((dropped * probe).sum(), x)
    (other,) = torch.autograd.grad((plain * kept * 2 * probe).sum(), x)
    torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_some_rows_are_those_of_the_whole_forward_and_backward(aggregator, probability):
    made, given = square(), matrices(aggregator)
    weights = made.weigh(torch.rand(len(made), dtype=torch.float64))
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([0, 3, 4, 7])
    leaves = [x, *(t for pair in given for t in pair)]
    probe = torch.randn(4, 4, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    seed_device(torch.device("cpu"), 8)
    own, some = aggregate(made, weights, x, PICKED, given, aggregator, 0.2, probability, rows)
    whole = aggregate(made, weights, x, PICKED, given, aggregator, 0.2, 0.0)[1][rows]
    if probability:
        assert 0 < (some == 0).sum() < some.numel()
        whole = whole * (some != 0) / (1 - probability)
    torch.testing.assert_close(some, whole)
    picked = (x[PICKED] * probe[1]).sum()
    ours = torch.autograd.grad((some * probe[0]).sum() + (own * probe[1]).sum(), leaves)
    theirs = torch.autograd.grad((whole * probe[0]).sum() + picked, leaves)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_rows_among_others_are_the_rows_of_the_whole():
    made = square()
    weights = made.weigh(torch.rand(len(made), dtype=torch.float64))
    x = torch.randn(9, 5, dtype=torch.float64)
    among = with_neighbors(made, PICKED)
    dense = spmm_reference(made, torch.ones(len(made)), torch.eye(9))
    expected = dense[PICKED].any(0)
    expected[PICKED] = True
    assert among.tolist() == expected.nonzero().view(-1).tolist()
    some = x[among].requires_grad_()
    own, sums = spmm_rows(made, weights, some, PICKED, among=among)
    torch.testing.assert_close(own, x[PICKED])
    torch.testing.assert_close(sums, spmm(made, weights, x)[PICKED])
    probe = torch.randn(2, 3, 5, dtype=torch.float64)
    (mine,) = torch.autograd.grad((own * probe[0] + sums * probe[1]).sum(), some)
    x.requires_grad_()
    whole = x[PICKED] * probe[0] + spmm(made, weights, x)[PICKED] * probe[1]
    (other,) = torch.autograd.grad(whole.sum(), x)
    torch.testing.assert_close(mine, other[among])


def test_bfloat16_follows_float32():
    made, given = square(), matrices("bi-interaction", dtype=torch.float32)
    weights = made.weigh(torch.rand(len(made)))
    x = torch.randn(9, 5, requires_grad=True)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = aggregate(made, weights, x, PICKED, given, "bi-interaction", 0.2, 0.0)[1]
        found.append((out, *torch.autograd.grad(out.float().square().sum(), [x, given[0][0]])))
    assert found[1][0].dtype == torch.bfloat16
    for full, low in zip(*found, strict=True):
        assert (low.float() - full).norm() < 0.03 * full.norm()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("way", ["spread_added", "spread_sorted", "spread_stored", "spread"])
def test_rows_spread_the_gradient_of_the_whole(way, share, restricted):
    """Added one by one, sorted, or selected from the transpose; and what the device takes."""
    made = graph(rows=200, columns=200, entries=3000)
    weights = made.weigh(torch.rand(len(made), dtype=torch.float64))
    rows = torch.randperm(200)[: int(200 * share)]
    among = with_neighbors(made, rows) if restricted else None
    x = torch.randn(200, 5, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(len(rows), 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad((spmm(made, weights, x)[rows] * probe).sum(), x)
    found = getattr(RowEntries.of(made, weights, RowPositions.of(made, rows), among), way)(probe)
    torch.testing.assert_close(found, expected if among is None else expected[among])


def test_rows_alone_are_the_rows_of_the_whole():
    made = square()
    weights = made.weigh(torch.rand(len(made), dtype=torch.float64))
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(2, 3, 5, dtype=torch.float64)
    own, sums = spmm_rows(made, weights, x, PICKED)
    whole = spmm(made, weights, x)
    torch.testing.assert_close(sums, whole[PICKED])
    (mine,) = torch.autograd.grad((own * probe[0] + sums * probe[1]).sum(), x)
    (other,) = torch.autograd.grad((x[PICKED] * probe[0] + whole[PICKED] * probe[1]).sum(), x)
    torch.testing.assert_close(mine, other)

"""Graphs of more entries than 32 bits number, by a limit that is lowered to a few."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.errors import DataError
from hasten.ops.graph import offsets
from hasten.ops.graph.offsets import offset_tensor, row_blocks
from hasten.ops.graph.row_products import row_products
from hasten.ops.graph.spmm import SparseGraph, spmm
from hasten.ops.graph.spmm_rows import RowPositions, spmm_rows
from tests.ops.graph.test_spmm import PATHS, graph


@pytest.fixture
def few(monkeypatch):
    """At most 12 entries have offsets in 32 bits."""
    monkeypatch.setattr(offsets, "MAX_ENTRIES", 12)


def both(monkeypatch, columns: int = 7) -> tuple[SparseGraph, SparseGraph]:
    """The same graph of 40 entries, with offsets in 32 bits and in 64."""
    short = graph(columns=columns)
    monkeypatch.setattr(offsets, "MAX_ENTRIES", 12)
    long = graph(columns=columns)
    assert short.offsets.dtype == short.offsets_t.dtype == torch.int32
    assert long.offsets.dtype == long.offsets_t.dtype == torch.int64
    assert long.columns.dtype == long.columns_t.dtype == torch.int32
    return short, long


def test_blocks_hold_all_rows_and_few_entries_each(few):
    bounds = offset_tensor(np.array([0, 5, 5, 12, 13, 25, 26]))
    found = list(row_blocks(bounds))
    assert [(rows.start, rows.stop) for rows, _, _ in found] == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert [(own.start, own.stop) for _, own, _ in found] == [(0, 12), (12, 13), (13, 25), (25, 26)]
    assert [short.tolist() for _, _, short in found][:2] == [[0, 5, 5, 12], [0, 1]]
    assert all(short.dtype == torch.int32 for _, _, short in found)


def test_more_edges_of_a_node_than_can_be_added_are_refused(few):
    with pytest.raises(DataError, match="a node has 13 edges, and at most 12"):
        list(row_blocks(offset_tensor(np.array([0, 1, 14]))))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("weighed", [True, False])
def test_products_and_gradients_are_the_same(path, weighed, monkeypatch):
    torch.manual_seed(0)
    values, probe = torch.randn(40), torch.randn(9, 5)
    results = []
    for made in both(monkeypatch):
        x = torch.linspace(-1, 1, 35).reshape(7, 5).requires_grad_()
        own = values.clone().requires_grad_(not weighed)
        out = spmm(made, made.weigh(own) if weighed else own, x, path)
        (out * probe).sum().backward()
        results.append([out, x.grad, *(() if weighed else (own.grad,))])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_inner_products_of_edges_are_the_same(monkeypatch):
    torch.manual_seed(0)
    a, b = torch.randn(9, 4), torch.randn(7, 4)
    short, long = both(monkeypatch)
    found = row_products(long.offsets, long.columns, a, b)
    assert torch.equal(found, row_products(short.offsets, short.columns, a, b))


@pytest.mark.parametrize("rows", [[0, 5], [0, 1, 2, 4, 5, 6, 7, 8]], ids=["few", "most"])
def test_products_of_some_rows_are_the_same(rows, monkeypatch):
    torch.manual_seed(0)
    values = torch.randn(40)
    results = []
    for made in both(monkeypatch, columns=9):
        x = torch.linspace(-1, 1, 45).reshape(9, 5).requires_grad_()
        own = torch.tensor(rows)
        chosen = RowPositions.of(made, own)
        out = spmm_rows(made, made.weigh(values), x, chosen)
        sum((part * part).sum() for part in out).backward()
        results.append([*out, x.grad])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)

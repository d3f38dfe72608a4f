"""Sparse products over a fixed graph against a dense matrix, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from hasten.errors import DataError
from hasten.ops.graph.row_products import row_products
from hasten.ops.graph.spmm import SparseGraph, spmm
from tests.ops.reference import spmm_reference

PATHS = ["bag", "csr", "gather"]


def graph(rows: int = 9, columns: int = 7, entries: int = 40, seed: int = 0) -> SparseGraph:
    """Row 3 is empty, column 2 too; some pairs occur twice."""
    generator = np.random.default_rng(seed)
    row = np.sort(generator.choice([r for r in range(rows) if r != 3], entries))
    column = generator.choice([c for c in range(columns) if c != 2], entries)
    return SparseGraph.build(row.astype(np.int64), column.astype(np.int64), rows, columns)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("weighed", [True, False])
def test_equals_the_dense_product_forward_and_backward(path, weighed):
    made = graph()
    torch.manual_seed(1)
    values = torch.randn(len(made))
    x, y = (torch.randn(7, 5, requires_grad=True) for _ in range(2))
    y.data.copy_(x.data)
    probe = torch.randn(9, 5)
    ours = spmm(made, made.weigh(values) if weighed else values, x, path)
    theirs = spmm_reference(made, values, y)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    (ours * probe).sum().backward()
    (theirs * probe).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-5)
    assert (ours[3] == 0).all()
    assert (x.grad[2] == 0).all()


def test_values_that_need_a_gradient_get_it():
    made = graph()
    torch.manual_seed(2)
    values = torch.randn(len(made), dtype=torch.float64, requires_grad=True)
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda v, t: spmm(made, v, t, "gather"), (values, x))
    assert gradcheck(lambda v, t: spmm(made, v, t, "csr"), (values, x))


def test_float64_has_a_fast_path_that_agrees():
    made = graph()
    values = torch.randn(len(made), dtype=torch.float64)
    x = torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(spmm(made, values, x), spmm_reference(made, values, x))


def test_autocast_multiplies_in_bfloat16():
    made = graph(entries=200)
    torch.manual_seed(3)
    values, x = torch.rand(len(made)), torch.randn(7, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        low = spmm(made, values, x)
    assert low.dtype == torch.bfloat16
    full = spmm_reference(made, values, x.detach())
    torch.testing.assert_close(low.float(), full, rtol=2e-2, atol=0.15)
    assert (low.float() != full).any()
    low.float().sum().backward()
    assert x.grad.dtype == torch.float32


def test_gathering_in_chunks_changes_nothing(monkeypatch):
    made = graph(entries=300)
    values, x = torch.randn(len(made)), torch.randn(7, 4)
    whole = spmm(made, values, x, "gather")
    monkeypatch.setattr("hasten.ops.graph.spmm._GATHERED", 12)
    torch.testing.assert_close(spmm(made, values, x, "gather"), whole)


def test_edge_products_are_those_of_the_ends():
    made = graph()
    a, b = torch.randn(9, 4), torch.randn(7, 4)
    dense = a @ b.T
    expected = dense[made.rows, made.columns.long()]
    torch.testing.assert_close(row_products(made.offsets, made.columns, a, b), expected)


def test_rows_must_come_in_order():
    with pytest.raises(AssertionError, match="row by row"):
        SparseGraph.build(np.array([1, 0]), np.array([0, 0]), 2, 1)


def test_too_many_nodes_are_refused():
    none = np.zeros(0, np.int64)
    with pytest.raises(DataError, match="2,147,483,648 nodes, and at most 2,147,483,647 fit"):
        SparseGraph.build(none, none, 1, 2**31)

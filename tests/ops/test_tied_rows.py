"""One gradient for a table and rows gathered from it."""

from __future__ import annotations

import torch

from hasten.ops.dense.tied_rows import tied_rows


def test_gradient_is_that_of_both():
    weight = torch.randn(9, 3, requires_grad=True)
    ids = torch.tensor([2, 2, 5])
    rows, table = tied_rows(weight, ids)
    assert torch.equal(rows, weight[ids])
    assert table.data_ptr() == weight.data_ptr()
    for _ in range(2):  # two micro-batches
        rows, table = tied_rows(weight, ids)
        ((rows**2).sum() + (table**3).sum()).backward()
    found, weight.grad = weight.grad, None
    (2 * ((weight[ids] ** 2).sum() + (weight**3).sum())).backward()
    torch.testing.assert_close(found, weight.grad)


def test_either_alone():
    weight = torch.randn(4, 2, requires_grad=True)
    rows, _ = tied_rows(weight, torch.tensor([1]))
    rows.sum().backward()
    assert torch.equal(weight.grad, torch.tensor([[0.0, 0], [1, 1], [0, 0], [0, 0]]))
    weight.grad = None
    _, table = tied_rows(weight, torch.tensor([1]))
    table.sum().backward()
    assert torch.equal(weight.grad, torch.ones(4, 2))

"""Rows of a table and the table: values and gradients of reading them separately."""

from __future__ import annotations

import torch

from hasten.ops.rows_and_table import rows_and_table
from hasten.ops.table import EmbeddingTable

IDS = torch.tensor([3, 0, 3, 4])


def losses(rows: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    return (rows.pow(3) * torch.arange(1.0, 5)[:, None]).sum() + whole.square().sum()


def test_gradients_are_those_of_separate_reads():
    table = EmbeddingTable(6, 2)
    rows, entities = rows_and_table(table, IDS)
    assert torch.equal(rows, table.weight[IDS])
    assert len(entities) == 6
    losses(rows, entities.block(0, 6)).backward()
    weight = table.weight.detach().requires_grad_()
    losses(weight[IDS], weight).backward()
    torch.testing.assert_close(table.weight.grad, weight.grad)


def test_gradients_of_a_mean_and_of_the_rows_alone():
    for whole in (True, False):
        table = EmbeddingTable(6, 2)
        rows, entities = rows_and_table(table, IDS)
        loss = rows.pow(2).sum() + (entities.block(0, 6).mean() if whole else 0)
        loss.backward()
        weight = table.weight.detach().requires_grad_()
        (weight[IDS].pow(2).sum() + (weight.mean() if whole else 0)).backward()
        torch.testing.assert_close(table.weight.grad, weight.grad)


def test_rows_that_are_read_in_place_of_the_table():
    table = EmbeddingTable(6, 2)
    read = torch.tensor([0, 3, 4])
    leaf = table.weight.detach()[read].requires_grad_()
    with table.reading(read, leaf):
        rows, entities = rows_and_table(table, IDS)
        assert entities is table
        rows.sum().backward()
    assert table.weight.grad is None
    assert torch.equal(leaf.grad, torch.tensor([[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]))

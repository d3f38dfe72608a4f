"""Rows of a table beside the whole table, for losses that read both, in one backward pass.

By themselves the rows of a step would give a gradient of the whole table: it is filled with zeros,
the gradients of the rows are added to it, and it is added to the gradient of the loss over all
rows, five passes over the table in all. Here they are added to the gradient of that loss in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.ops.table import EmbeddingTable, FixedTable, Table


def rows_and_table(table: Table, ids: Tensor) -> tuple[Tensor, Table]:
    """[R, D] rows of int64 ids [R], and the table to read all rows from.

    If the table is sharded, or other rows are read in its place, the rows and the table itself.
    """
    if type(table) is not EmbeddingTable or table.is_reading:
        return table.rows(ids), table
    rows, weight = _RowsAndTable.apply(table.weight, ids)  # type: ignore[no-untyped-call]
    return rows, FixedTable(weight)


class _RowsAndTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        return weight.index_select(0, ids), weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, of_rows: Tensor, of_table: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        # in place: no one else holds the gradient of this view. That of a mean is expanded
        total = of_table.contiguous()
        if total.device.type == "cpu":
            return total.index_add_(0, ids, of_rows), None
        # sorts the ids, so that the sums have the same order in each run
        return total.index_put_((ids,), of_rows, accumulate=True), None

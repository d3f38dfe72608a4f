"""Rows of a table beside the whole table, with one gradient for both.

A loss over the whole catalogue gives the table a dense gradient. The gradient of a gather from the
same table would be a second one, all zeros but for a few rows, to be written and added. Here gather
and table leave one node together, so that its backward pass adds the rows' gradient in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tied_rows(weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """[B, D] rows of ``weight`` [N, D] by ids int64 [B], and the table to go on with.

    The gradient of the returned table is added to in place: it must be one loss's own.
    """
    rows, table = _TiedRows.apply(weight, ids)  # type: ignore[no-untyped-call]
    return rows, table


class _TiedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        ctx.shape = weight.shape
        ctx.set_materialize_grads(False)
        return weight.index_select(0, ids), weight.view_as(weight)

    @staticmethod
    def backward(
        ctx: Any, grad_rows: Tensor | None, grad_table: Tensor | None
    ) -> tuple[Tensor | None, None]:
        (ids,) = ctx.saved_tensors
        if grad_rows is None:
            return grad_table, None
        if grad_table is None:
            grad_table = grad_rows.new_zeros(ctx.shape)
        return grad_table.index_add_(0, ids, grad_rows), None

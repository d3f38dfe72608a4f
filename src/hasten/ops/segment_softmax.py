"""Softmax over the entries of every row of a fixed graph, in float32 or wider, max-subtracted.

``p[e] = exp(l[e] - max) / sum of the same over the row of e``. Rows are compressed, so that both
reductions run along the entries; the backward pass is ``p (g - sum of p g over the row)``.
A row without entries has no softmax, and a row whose logits are all -inf has zeros.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import wide
from hasten.ops.spmm import rows_of


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    """[E] softmax within each row. logits: [E], row by row; offsets: [rows + 1], their bounds."""
    result: Tensor = _SegmentSoftmax.apply(logits, offsets)  # type: ignore[no-untyped-call]
    return result


def segment_softmax_reference(logits: Tensor, offsets: Tensor) -> Tensor:
    """The same, one row after the other."""
    bounds = offsets.tolist()
    rows = [torch.softmax(logits[start:stop], 0) for start, stop in pairwise(bounds)]
    return torch.cat(rows) if rows else logits


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, offsets: Tensor) -> Tensor:
        values, row = logits.to(wide(logits)), rows_of(offsets, len(logits))
        count = len(offsets) - 1
        top = values.new_full((count,), -torch.inf).scatter_reduce(0, row, values, "amax")
        top = torch.where(torch.isfinite(top), top, 0.0)
        weights = (values - top.index_select(0, row)).exp_()
        total = _sums(weights, row, offsets)
        weights /= torch.where(total > 0, total, 1.0).index_select(0, row)
        ctx.save_for_backward(weights, row, offsets)
        ctx.dtype = logits.dtype
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        weights, row, offsets = ctx.saved_tensors
        weighed = weights * grad
        weighed -= weights * _sums(weighed, row, offsets).index_select(0, row)
        return weighed.to(ctx.dtype), None


def _sums(values: Tensor, row: Tensor, offsets: Tensor) -> Tensor:
    """[rows] the sums of the entries of each row, always in the same order."""
    if values.device.type == "mps":  # has no segment_reduce
        return values.new_zeros(len(offsets) - 1).index_add_(0, row, values)
    return torch.segment_reduce(values, "sum", offsets=offsets.long(), initial=0.0)

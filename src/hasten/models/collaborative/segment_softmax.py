"""Softmax over the entries of every row of a fixed graph, in float32 or wider, max-subtracted.

``p[e] = exp(l[e] - max) / sum of the same over the row of e``. Rows are compressed, so that both
reductions run along the entries; the backward pass is ``p (g - sum of p g over the row)``.
A row without entries has no softmax, and a row whose logits are all -inf has zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import wide
from hasten.ops.graph.row_products import rows_of


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    """[E] softmax within each row. logits: [E], row by row; offsets: [rows + 1], their bounds."""
    result: Tensor = _SegmentSoftmax.apply(logits, offsets)  # type: ignore[no-untyped-call]
    return result


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, offsets: Tensor) -> Tensor:
        values = logits.to(wide(logits))
        top = _reduced(values, offsets, "max", -torch.inf)
        top = torch.where(torch.isfinite(top), top, 0.0)
        weights = (values - _spread(top, offsets, len(values))).exp_()
        total = _reduced(weights, offsets, "sum", 0.0)
        weights /= _spread(torch.where(total > 0, total, 1.0), offsets, len(values))
        ctx.save_for_backward(weights, offsets)
        ctx.dtype = logits.dtype
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        weights, offsets = ctx.saved_tensors
        weighed = weights * grad
        sums = _reduced(weighed, offsets, "sum", 0.0)
        weighed -= weights * _spread(sums, offsets, len(weights))
        return weighed.to(ctx.dtype), None


def _reduced(values: Tensor, offsets: Tensor, how: str, empty: float) -> Tensor:
    """[rows] the sum or the largest of the entries of each row, always in the same order."""
    if values.device.type == "mps":  # has no segment_reduce
        row, out = rows_of(offsets, len(values)), values.new_full((len(offsets) - 1,), empty)
        return out.scatter_reduce(0, row, values, "sum" if how == "sum" else "amax")
    return torch.segment_reduce(values, how, offsets=offsets.long(), initial=empty)


def _spread(values: Tensor, offsets: Tensor, count: int) -> Tensor:
    """[entries] of every entry the value of its row."""
    return torch.repeat_interleave(values, offsets.diff(), output_size=count)

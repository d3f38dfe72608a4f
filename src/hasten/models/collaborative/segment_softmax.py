"""Softmax over the entries of each row of a sparse matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.ops.dtypes import upcast
from hasten.ops.graph.row_products import rows_of


@torch.no_grad()
def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    """[E] softmax within each row, float32 or float64, without gradient.

    logits: [E], row by row; offsets: [rows + 1]. A row whose logits are all -inf gets zeros.
    """
    values = upcast(logits)
    top = _reduce(values, offsets, "max", -torch.inf)
    top = torch.where(torch.isfinite(top), top, 0.0)
    weights = (values - _expand(top, offsets, len(values))).exp_()
    total = _reduce(weights, offsets, "sum", 0.0)
    weights /= _expand(torch.where(total > 0, total, 1.0), offsets, len(values))
    return weights


def _reduce(values: Tensor, offsets: Tensor, how: str, empty: float) -> Tensor:
    """[rows] the sum or the maximum of each row, in a deterministic order."""
    if values.device.type == "mps":  # has no segment_reduce
        row = rows_of(offsets.long(), len(values))
        out = values.new_full((len(offsets) - 1,), empty)
        return out.scatter_reduce(0, row, values, "sum" if how == "sum" else "amax")
    return torch.segment_reduce(values, how, offsets=offsets.long(), initial=empty)


def _expand(values: Tensor, offsets: Tensor, count: int) -> Tensor:
    """[E] for each entry, the value of its row."""
    return torch.repeat_interleave(values, offsets.diff(), output_size=count)

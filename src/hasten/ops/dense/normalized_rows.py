"""Stack tensors to tables, L2-normalize their rows, and concatenate the tables by columns.

Table m is its parts stacked by rows; columns m D to (m + 1) D of the result are its rows
``row / max(|row|, 1e-12)``. Forward writes directly into the result and keeps it; with y a row of
it and g its gradient, the gradient of the row is ``(g - y (g · y)) / |row|``. ``cat`` and
``normalize`` would pass over the table some twenty times instead of seven.

Shapes: R rows in all the parts of a table together, D width, M tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hasten.ops.dtypes import accumulation_dtype, autocast_dtype

#: lower bound of the norm that a row is divided by
MIN_NORM = 1e-12


def normalized_rows(*tables: Sequence[Tensor]) -> Tensor:
    """[R, M D] of M lists of parts [*, D] with the same total height R: in autocast's precision.

    Without autocast the result is in float32 or wider.

    A row of zeros stays zero; its gradient is that of the division by 1e-12.
    """
    heights, like = [len(part) for part in tables[0]], tables[0][0]
    lower = torch.is_autocast_enabled(like.device.type)
    kind = autocast_dtype(like) if lower else accumulation_dtype(like)
    normalized: Tensor = _NormalizedRows.apply(  # type: ignore[no-untyped-call]
        heights, kind, *(part for parts in tables for part in parts)
    )
    return normalized


class _NormalizedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heights: list[int], kind: torch.dtype, *parts: Tensor) -> Tensor:
        width, total, count = parts[0].shape[1], sum(heights), len(parts) // len(heights)
        out = parts[0].new_empty(total, count, width, dtype=kind)
        lengths = out.new_empty(total, count, 1, dtype=accumulation_dtype(parts[0]))
        places = zip(parts, _places(out, heights), _places(lengths, heights), strict=True)
        for part, into, length in places:
            whole = part.to(lengths.dtype)
            torch.linalg.vector_norm(whole, dim=1, keepdim=True, out=length)
            torch.div(whole, length.clamp_(min=MIN_NORM), out=into)
        ctx.save_for_backward(out, lengths)
        ctx.heights, ctx.kinds = heights, [part.dtype for part in parts]
        return out.view(total, count * width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, lengths = ctx.saved_tensors
        grad, out = grad.reshape(out.shape).to(lengths.dtype), out.to(lengths.dtype)
        along = torch.linalg.vecdot(grad, out)[..., None]
        along.masked_fill_(lengths <= MIN_NORM, 0.0)
        grad_rows = torch.addcmul(grad, out, along, value=-1).div_(lengths)
        parts = zip(_places(grad_rows, ctx.heights), ctx.kinds, strict=True)
        return None, None, *(part.to(kind) for part, kind in parts)


def _places(table: Tensor, heights: list[int]) -> list[Tensor]:
    """The slices of the parts in [R, M, D]: those of the first table, then of the second, ..."""
    return [part for m in range(table.shape[1]) for part in torch.split(table[:, m], heights)]

"""Several tables of two parts side by side, every row of each scaled to length one.

For each table m its N rows ``top_m`` stand above its U rows ``bottom_m``, and columns m D to
(m + 1) D of the result are ``row / max(|row|, 1e-12)``. Forward writes into the result at once and
keeps it; with y a row of it and g its gradient, that of the row is ``(g - y (g · y)) / |row|``.
Written with ``cat`` and ``normalize``, the same passes over the table some twenty times.

Shapes: N rows above, U below, D width, M tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_LEAST = 1e-12


def unit_rows(tops: Sequence[Tensor], bottoms: Sequence[Tensor]) -> Tensor:
    """[N + U, M D] in the precision of ``bottoms``; tops: M of [N, D], bottoms: M of [U, D]."""
    found: Tensor = _UnitRows.apply(  # type: ignore[no-untyped-call]
        len(tops), *tops, *bottoms
    )
    return found


def unit_rows_reference(tops: Sequence[Tensor], bottoms: Sequence[Tensor]) -> Tensor:
    """The same by ``cat`` and ``normalize``."""
    tables = [torch.cat([t.to(b.dtype), b]) for t, b in zip(tops, bottoms, strict=True)]
    return torch.cat([F.normalize(table, dim=1, eps=_LEAST) for table in tables], dim=1)


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *parts: Tensor) -> Tensor:
        tops, bottoms = parts[:count], parts[count:]
        above, width = tops[0].shape
        total = above + len(bottoms[0])
        out = bottoms[0].new_empty(total, count, width)
        lengths = out.new_empty(total, count, 1)
        for m, pair in enumerate(zip(tops, bottoms, strict=True)):
            for part, rows in zip(pair, (slice(above), slice(above, total)), strict=True):
                whole = part.to(out.dtype)
                length = lengths[rows, m]
                torch.linalg.vector_norm(whole, dim=1, keepdim=True, out=length)
                torch.div(whole, length.clamp_(min=_LEAST), out=out[rows, m])
        ctx.save_for_backward(out, lengths)
        ctx.above, ctx.kinds = above, [part.dtype for part in parts]
        return out.view(total, count * width)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, lengths = ctx.saved_tensors
        grad = grad.reshape(out.shape)
        along = torch.linalg.vecdot(grad, out)[..., None]
        along.masked_fill_(lengths <= _LEAST, 0.0)
        found = torch.addcmul(grad, out, along, value=-1).div_(lengths)
        parts = [found[: ctx.above, m] for m in range(out.shape[1])]
        parts += [found[ctx.above :, m] for m in range(out.shape[1])]
        return None, *(part.to(kind) for part, kind in zip(parts, ctx.kinds, strict=True))

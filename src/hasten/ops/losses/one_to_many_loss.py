"""1-N binary cross-entropy over the whole catalog without a label matrix.

For queries x_i with true rows T_i among N, scores s_ij = x_i · e_j + b_j and smoothed labels
y'_ij = (1 - ε) [j in T_i] + ε / N (Dettmers et al. 2018, section 5, "1-N scoring"):

    sum_ij softplus(s_ij) - (1 - ε) sum_{i, j in T_i} s_ij - (ε / N) sum_ij s_ij

so labels are needed at the true rows only. Forward and backward are computed together, a chunk of
catalog rows at a time: scores, residual ``sigmoid(s) - y'`` and both gradients. Within a chunk,
element-wise work is done in pieces that stay in the second-level cache. The backward pass only
scales the stored gradients; it can run once.

Memory: one chunk of scores (``chunk_bytes``) and the gradients, whatever B and N. Sums and
residuals are float32; under bf16 and fp16 the products are in these, as under autocast, those of
fp16 residuals summed in float32 (:mod:`.half_residuals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dense.product import product, product_into
from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.losses.catalog_targets import LabelPairs, without_padding
from hasten.ops.losses.half_residuals import residual_product, residual_scale
from hasten.ops.triton.choice import uses_triton

#: scores held at once: few GEMM calls, and still in a CPU's third-level cache
CHUNK_BYTES_CPU = 8 << 20
CHUNK_BYTES_DEVICE = 256 << 20
#: scores per piece
_PIECE_BYTES = 4 << 20
_MIN_CHUNK_ROWS = 64


def one_to_many_loss(
    x: Tensor,
    blocks: Sequence[Tensor],
    row: Tensor,
    item: Tensor,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
    scale: float = 1.0,
    chunk_bytes: int | None = None,
) -> Tensor:
    """:func:`one_to_many_of_pairs` of int64 [P], pairs of a query and a true row in any order."""
    pairs = LabelPairs.build(row, item)
    return one_to_many_of_pairs(x, blocks, pairs, bias, smoothing, scale, chunk_bytes)


def one_to_many_of_pairs(
    x: Tensor,
    blocks: Sequence[Tensor],
    pairs: LabelPairs,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
    scale: float = 1.0,
    chunk_bytes: int | None = None,
    total: int | None = None,
) -> Tensor:
    """The sum over all queries and catalog rows of the binary cross-entropy.

    x: [B, D]; blocks: [N_i, D], the table's shards; pairs: the distinct pairs of a query and a true
    row of the stacked catalog; bias: [N] or None; smoothing: ε. scale: the gradient that the loss
    will receive. The result does not depend on it; if it is right, the backward pass saves a pass
    over the gradients. total: the rows of the whole catalog, if ``blocks`` and ``pairs`` are only
    those of one process (:mod:`.table_losses`); None: all.
    """
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    if chunk_bytes is None:
        if total is None and uses_triton("1-n", x, x.shape[1], dtype):
            from hasten.ops.triton.one_to_many import one_to_many  # noqa: PLC0415

            largest = residual_scale(dtype)
            item = without_padding(pairs.item, pairs.weight)
            return one_to_many(x, blocks, pairs.row, item, bias, smoothing, dtype, largest)
        chunk_bytes = CHUNK_BYTES_CPU if x.device.type == "cpu" else CHUNK_BYTES_DEVICE
    pass_ = _Pass(x, blocks, pairs, bias, smoothing, scale, chunk_bytes, dtype, total)
    result: Tensor = _OneToMany.apply(pass_, x, bias, *blocks)  # type: ignore[no-untyped-call]
    return result


class _OneToMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pass_: _Pass, x: Tensor, bias: Tensor | None, *_: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            loss = pass_.run(exact=x.device.type != "cpu")
            if x.device.type == "cpu" and not bool(loss.isfinite()):
                loss = pass_.run(exact=True)  # exp overflows from scores of 88 on
        ctx.has_bias, ctx.dtype = bias is not None, x.dtype
        ctx.grads, ctx.scale = pass_.gradients(), pass_.scale
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        assert ctx.grads is not None, "this backward pass can run only once"
        grads, ctx.grads = ctx.grads, None
        factor = grad_loss / grad_loss.new_full((), ctx.scale)
        if factor.device.type != "cpu" or float(factor) != 1.0:
            for grad in grads:
                grad.mul_(factor.to(grad.dtype))
        grad_x, grad_bias, *grad_blocks = grads
        kept = grad_bias if ctx.has_bias else None
        return None, grad_x.to(ctx.dtype), kept, *grad_blocks


class _Pass:
    """Loss and gradients of all queries against one chunk of catalog rows at a time.

    Scores are held as [rows, B]: both products that follow read them along their rows.
    """

    def __init__(
        self,
        x: Tensor,
        blocks: Sequence[Tensor],
        pairs: LabelPairs,
        bias: Tensor | None,
        smoothing: float,
        scale: float,
        chunk_bytes: int,
        dtype: torch.dtype,
        total: int | None,
    ) -> None:
        x = x.detach()
        self.x, self.blocks, self.bias, self.scale = x, blocks, bias, scale
        self.pairs, self.smoothing, self.dtype = pairs, smoothing, dtype
        self.kind, self.width = accumulation_dtype(x), max(1, len(x))
        self.count = sum(len(block) for block in blocks)
        self.share = smoothing / (total or self.count)
        self.low, self.scaled = x.to(dtype), (x * scale).to(dtype)
        self.residual_scale = residual_scale(dtype)
        self.rows = max(_MIN_CHUNK_ROWS, chunk_bytes // (4 * self.width))
        self.piece = min(self.rows, max(_MIN_CHUNK_ROWS, _PIECE_BYTES // (4 * self.width)))
        if x.device.type != "cpu":
            self.piece = self.rows
        self.held = [torch.empty(0, dtype=self.kind, device=x.device) for _ in range(2)]

    def run(self, exact: bool) -> Tensor:
        """Return the loss and keep the gradients. exact: use no exp that could overflow."""
        wide_x = self.x.new_empty(0, dtype=self.kind)
        self.grad_x = wide_x.new_zeros(self.x.shape)
        self.grads = [wide_x.new_empty(block.shape) for block in self.blocks]
        self.grad_bias = wide_x.new_empty(0 if self.bias is None else self.count)
        loss = wide_x.new_zeros(())
        start = 0
        for block, grad in zip(self.blocks, self.grads, strict=True):
            for begin in range(0, len(block), self.rows):
                table = block[begin : begin + self.rows].to(self.dtype)
                scores = product(table, self.low.T)
                loss += self.residuals_(scores, start + begin, exact)
                target = grad[begin : begin + self.rows]
                if self.dtype == torch.float16:
                    scale = self.residual_scale / self.scale
                    target.copy_(residual_product(scores, self.low, scale))
                else:
                    product_into(target, scores, self.scaled)
                if self.dtype == self.kind:
                    self.grad_x.addmm_(scores.T, table)
                else:
                    self.grad_x += residual_product(scores.T, table, self.residual_scale)
            start += len(block)
        self.grad_x *= self.scale
        self.grad_bias *= self.scale
        return loss

    def residuals_(self, scores: Tensor, first: int, exact: bool) -> Tensor:
        """Turn scores [rows, B] from catalog row ``first`` on into residuals; return the loss."""
        starts = range(first, first + len(scores), self.piece)
        edges = [*starts, first + len(scores)]
        found = [slice(0)] * len(starts)
        if self.pairs.items_on_host is not None:
            bounds = np.searchsorted(self.pairs.items_on_host, edges).tolist()
            found = [slice(*each) for each in pairwise(bounds)]
        loss = torch.zeros((), dtype=self.kind, device=scores.device)
        for number, start in enumerate(starts):
            part = scores[start - first : start - first + self.piece]
            stop = start + len(part)
            piece = part
            if self.dtype != self.kind:
                piece = self.buffer(0, part).copy_(part)
            if self.bias is not None:
                piece += self.bias[start:stop, None]
            whole = len(part) == self.count
            place, weight = self.pairs.places(start, stop, self.width, found[number], whole)
            flat = piece.view(-1)
            true = flat[place] if weight is None else flat[place] * weight
            loss -= (1 - self.smoothing) * true.sum()
            if self.smoothing:
                loss -= self.share * piece.sum()
            loss += _softplus_and_residual_(piece, self.share, self.buffer(1, part), exact)
            if weight is None:
                flat[place] -= 1 - self.smoothing
            else:  # a place may occur again, with the weight 0
                flat.index_add_(0, place, weight.to(flat.dtype), alpha=self.smoothing - 1)
            if self.bias is not None:
                torch.sum(piece, 1, out=self.grad_bias[start:stop])
            if self.dtype != self.kind:
                if self.residual_scale != 1:
                    piece *= self.residual_scale
                part.copy_(piece)
        return loss

    def buffer(self, number: int, like: Tensor) -> Tensor:
        """A buffer of this shape, reused for every piece."""
        held = self.held[number]
        if held.numel() < like.numel():
            held = self.held[number] = held.new_empty(like.numel())
        return held[: like.numel()].view(like.shape)

    def gradients(self) -> list[Tensor]:
        """The gradients of x, the bias and the blocks."""
        shaped = [g.to(b.dtype) for g, b in zip(self.grads, self.blocks, strict=True)]
        # fp16 gradients are cast after the backward pass has scaled them
        half = self.x.dtype == torch.float16
        return [self.grad_x if half else self.grad_x.to(self.x.dtype), self.grad_bias, *shaped]


def _softplus_and_residual_(scores: Tensor, share: float, above: Tensor, exact: bool) -> Tensor:
    """The sum of softplus(s); turns the scores into sigmoid(s) - share. above: a buffer.

    exp is computed once, for log(1 + e) and for e / (1 + e), and the logarithm once per product of
    eight; an overflow shows in the sum. exact: use torch's functions.
    """
    if exact:
        total = F.softplus(scores).sum()
        scores.sigmoid_().sub_(share)
        return total
    scores.exp_()
    torch.add(scores, 1.0, out=above)
    torch.addcdiv(scores.new_tensor(-share), scores, above, out=scores)
    total = scores.new_zeros(())
    for _ in range(3):
        half = len(above) // 2
        if 2 * half < len(above):
            total += above[-1].log().sum()
        above = torch.mul(above[:half], above[half : 2 * half], out=above[:half])
    return total + above.log_().sum()

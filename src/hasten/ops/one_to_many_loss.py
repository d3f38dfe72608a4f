"""1-N binary cross-entropy over the whole catalogue without a label matrix.

For queries x_i with true rows T_i among N, scores s_ij = x_i · e_j + b_j and smoothed labels
y'_ij = (1 - ε) [j in T_i] + ε / N (Dettmers et al. 2018, section 5, "1-N scoring"):

    sum_ij softplus(s_ij) - (1 - ε) sum_{i, j in T_i} s_ij - (ε / N) sum_ij s_ij

The last sum is (sum_i x_i) · (sum_j e_j) + B sum_j b_j, so labels are needed at the true rows only.
Forward and backward are computed together, a chunk of catalogue rows at a time while its scores are
in cache: scores, residual ``sigmoid(s) - y'``, and from it both gradients. The gradients wait for
the backward pass, which scales them in place; it can therefore run once.

Memory: one chunk of scores (``chunk_bytes``) and the gradients, whatever B and N. Sums and
residuals are float32; under bf16 the products are taken in bf16, as autocast would, and the two
sums over all entities stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dtypes import wide

#: scores held at once: in the second-level cache on CPUs, a useful GEMM on GPUs
CHUNK_BYTES_CPU = 1 << 20
CHUNK_BYTES_DEVICE = 256 << 20
_FEWEST_COLUMNS = 64
#: exp(s) and log(1 + exp(s)) are taken as they read below this score; exp overflows at 88
_LARGE = 60.0


def one_to_many_loss(
    x: Tensor,
    blocks: Sequence[Tensor],
    row: Tensor,
    item: Tensor,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
    chunk_bytes: int | None = None,
) -> Tensor:
    """Sum over all queries and all catalogue rows of the binary cross-entropy: a scalar.

    x: [B, D]; blocks: [N_i, D], the table's shards; row, item: int64 [P], the distinct pairs of a
    query and a true row of the stacked catalogue; bias: [N] or None; smoothing: ε.
    """
    if chunk_bytes is None:
        chunk_bytes = CHUNK_BYTES_CPU if x.device.type == "cpu" else CHUNK_BYTES_DEVICE
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
    order = torch.argsort(item, stable=True)
    result: Tensor = _OneToMany.apply(  # type: ignore[no-untyped-call]
        x, row[order], item[order], bias, smoothing, chunk_bytes, dtype, *blocks
    )
    return result


def one_to_many_loss_reference(
    x: Tensor,
    blocks: Sequence[Tensor],
    row: Tensor,
    item: Tensor,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """The same, with the matrix of labels."""
    scores = x @ torch.cat(list(blocks)).T
    if bias is not None:
        scores = scores + bias
    labels = torch.zeros_like(scores)
    labels[row, item] = 1.0
    labels = (1 - smoothing) * labels + smoothing / scores.shape[1]
    return F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")


class _OneToMany(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        row: Tensor,
        item: Tensor,
        bias: Tensor | None,
        smoothing: float,
        chunk_bytes: int,
        dtype: torch.dtype,
        *blocks: Tensor,
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            loss, grads = _by_columns(x, blocks, row, item, bias, smoothing, chunk_bytes, dtype)
        ctx.has_bias = bias is not None
        ctx.grads = grads
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        assert ctx.grads is not None, "this backward pass can run only once"
        grads, ctx.grads = ctx.grads, None
        for grad in grads:
            grad.mul_(grad_loss.to(grad.dtype))
        grad_x, grad_bias, *grad_blocks = grads
        kept = grad_bias if ctx.has_bias else None
        return grad_x, None, None, kept, None, None, None, *grad_blocks


def _by_columns(
    x: Tensor,
    blocks: Sequence[Tensor],
    row: Tensor,
    item: Tensor,
    bias: Tensor | None,
    smoothing: float,
    chunk_bytes: int,
    dtype: torch.dtype,
) -> tuple[Tensor, list[Tensor]]:
    """All queries against a chunk of catalogue rows at a time.

    Scores are held as [columns, B]: both products that follow read them along their rows.
    """
    kind, device = wide(x), x.device
    count = sum(len(block) for block in blocks)
    low, total_x = x.to(dtype), x.to(kind).sum(0)
    grad_x = torch.zeros(x.shape, dtype=kind, device=device)
    grads = [torch.empty(block.shape, dtype=kind, device=device) for block in blocks]
    grad_bias = torch.empty(count if bias is not None else 0, dtype=kind, device=device)
    total_table = torch.zeros(x.shape[1], dtype=kind, device=device)
    loss = torch.zeros((), dtype=kind, device=device)
    share = smoothing / count
    columns = max(_FEWEST_COLUMNS, chunk_bytes // (4 * max(1, len(x))))
    starts = [0]
    for block in blocks:
        starts.append(starts[-1] + len(block))
    chunks = [
        (index, begin, min(begin + columns, len(block)))
        for index, block in enumerate(blocks)
        for begin in range(0, len(block), columns)
    ]
    edges = torch.tensor([starts[i] + begin for i, begin, _ in chunks] + [count], device=device)
    bounds = torch.searchsorted(item, edges).tolist()
    width = len(x)
    for number, (index, begin, end) in enumerate(chunks):
        first = starts[index] + begin
        table = blocks[index][begin:end]
        total_table += table.sum(0, dtype=kind)
        low_table = table.to(dtype)
        scores = (low_table @ low.T).to(kind)
        if bias is not None:
            scores += bias[first : first + end - begin, None]
        part = slice(bounds[number], bounds[number + 1])
        place = (item[part] - first) * width + row[part]
        flat = scores.view(-1)
        loss -= (1 - smoothing) * flat[place].sum()
        loss += _softplus_and_sigmoid_(scores)
        flat[place] -= 1 - smoothing
        if bias is not None:
            torch.sum(scores, 1, out=grad_bias[first : first + end - begin])
        residual = scores.to(dtype)
        product = residual @ low
        torch.sub(product, total_x * share, out=grads[index][begin:end])
        if dtype == kind:
            grad_x.addmm_(residual.T, low_table)
        else:
            grad_x += residual.T @ low_table
    total_bias = loss.new_zeros(()) if bias is None else width * bias.sum(dtype=kind)
    loss -= share * (total_x @ total_table + total_bias)
    grad_x -= share * total_table
    grad_bias -= share * width
    shaped = [grad.to(block.dtype) for grad, block in zip(grads, blocks, strict=True)]
    return loss, [grad_x.to(x.dtype), grad_bias, *shaped]


def _softplus_and_sigmoid_(scores: Tensor) -> Tensor:
    """The sum of softplus(s); the scores become sigmoid(s).

    On the CPU exp is taken once for both: log(1 + e) and e / (1 + e). Chunks with a score that
    exp could not hold take the longer way.
    """
    if scores.device.type != "cpu" or not bool(scores.max() < _LARGE):
        total = F.softplus(scores).sum()
        scores.sigmoid_()
        return total
    scores.exp_()
    above = scores + 1.0
    scores.div_(above)
    return above.log_().sum()

"""Attention over edges in Triton: no row, logit or weight of an edge is written to memory.

The part of :mod:`hasten.ops.attention.pair_attention` between the mapped keys k, values v of slots
and the output, for an edge e from slot s to destination i, in every head:

    logit = q[i] · k[s],   alpha = softmax of the logits over the edges into i,   out[i] = Σ alpha v

    slope = alpha (g[i] · v[s] - g[i] · out[i])            g: the gradient of the output
    dq[i] = Σ slope k[s],   dk[s] = Σ slope q[i],   dv[s] = Σ alpha g[i]

A program owns a destination, or in the second backward kernel a slot, with all heads, and adds up
its edges (:mod:`hasten.ops.edge_segments`); forward by online softmax (Milakov & Gimelshein
2018). Parts of long rows write sums that a further kernel merges. No atomic operations: equal
inputs give equal bits. Sums, softmax and logits are float32.

Bytes and operations, for E edges, M destinations, S slots, rows of W = H·d numbers of b bytes:

    kernel                rows of edges  rows read and written once   other     operations
    forward               2 E W b        2 M W b                      8 E       4 E W
    backward, of targets  2 E W b        4 M W b                      8 E       6 E W
    backward, of slots    2 E W b        4 S W b                      8 E(1+H)  8 E W

If every row came from memory once, the rows of edges would be 2 S W b for destinations and 2 M W b
for slots: between this floor and the table lies what the cache holds. An operation for each byte or
two is far below what processors do in the time of a byte, so there are no matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.ops.edge_segments import EdgeSegments
from hasten.ops.triton.edge_rows import load_edges, load_heads, load_rows, store_row

#: numbers in a tile of edges, two of which a program holds in registers: 16 of each thread
_TILE = 2048
_WARPS = 4


@triton.jit
def _own(offsets, part_row, part_first, parts, longest):
    """The row of a program, its first and last edge, and whether they are a part or all of it.

    Parts come first, so that short rows fill the device while the last parts run.
    """
    program = tl.program_id(0)
    is_part = program < parts
    row = tl.load(part_row + program, mask=is_part, other=program - parts)
    first, last = tl.load(offsets + row), tl.load(offsets + row + 1)
    is_all = (program >= parts) & (last - first <= longest)
    first = tl.load(part_first + program, mask=is_part, other=first)
    last = tl.where(is_part | is_all, tl.minimum(first + longest, last), first)
    return row, first, last, is_part, is_all


@triton.jit
def _add(scores, values, largest, total, attended):
    """Online softmax: further scores [B, ALL] and values [B, ALL, WIDE]."""
    new = tl.maximum(largest, tl.max(scores, 0))
    shift = tl.where(new == -float("inf"), 0.0, new)  # no edge is used so far
    weights, factor = tl.exp(scores - shift[None, :]), tl.exp(largest - shift)
    total = total * factor + tl.sum(weights, 0)
    attended = attended * factor[:, None] + tl.sum(weights[:, :, None] * values, 0)
    return new, total, attended


@triton.jit
def _finish(largest, total, attended):
    """The average, and the log-sum-exp: zeros and -inf where no edge is used."""
    none = total == 0.0
    total = tl.where(none, 1.0, total)
    return attended / total[:, None], tl.where(none, -float("inf"), largest + tl.log(total))


@triton.jit(do_not_specialize=["parts"])
def _forward(
    query, mapped, keep, edge, ends, offsets, part_row, part_first,
    out, lse, sums, part_lse, parts, longest, query_stride, slots_stride,
    HEADS: tl.constexpr, SIZE: tl.constexpr, ALL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """slots_stride: from a head to the next in mapped, the keys and then the values of slots."""
    row, first, last, is_part, is_all = _own(offsets, part_row, part_first, parts, longest)
    one = row + tl.arange(0, 1)
    asked = load_rows(query, one, one >= 0, SIZE, query_stride, HEADS, SIZE, ALL, WIDE)
    largest = tl.full([ALL], -float("inf"), dtype=tl.float32)
    total = tl.zeros([ALL], dtype=tl.float32)
    attended = tl.zeros([ALL, WIDE], dtype=tl.float32)
    for start in range(first, last, BLOCK):
        slot, used = load_edges(edge, ends, keep, start, last, BLOCK)
        keys = load_rows(mapped, slot, used, slots_stride, SIZE, HEADS, SIZE, ALL, WIDE)
        scores = tl.where(used[:, None], tl.sum(keys * asked, 2), -float("inf"))
        beside = mapped + tl.full([], HEADS, tl.int64) * slots_stride
        values = load_rows(beside, slot, used, slots_stride, SIZE, HEADS, SIZE, ALL, WIDE)
        largest, total, attended = _add(scores, values, largest, total, attended)
    average, log_sum = _finish(largest, total, attended)
    head = tl.arange(0, ALL)
    part = tl.program_id(0)
    store_row(out, average, row, is_all, SIZE, HEADS * SIZE, HEADS, SIZE, ALL, WIDE)
    tl.store(lse + row * HEADS + head, log_sum, mask=is_all & (head < HEADS))
    store_row(sums, average, part, is_part, SIZE, HEADS * SIZE, HEADS, SIZE, ALL, WIDE)
    tl.store(part_lse + part * HEADS + head, log_sum, mask=is_part & (head < HEADS))


@triton.jit(do_not_specialize=["parts"])
def _backward(
    query, mapped, keep, edge, ends, offsets, part_row, part_first,
    grad, out, lse, inner, grads, sums, parts, longest, query_stride, slots_stride,
    OF_SLOT: tl.constexpr,
    HEADS: tl.constexpr, SIZE: tl.constexpr, ALL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, which write inner = grad · out for those of the slots, or the latter.

    inner: [M, HEADS].
    """
    row, first, last, is_part, is_all = _own(offsets, part_row, part_first, parts, longest)
    one = row + tl.arange(0, 1)
    here = one >= 0
    beside = mapped + tl.full([], HEADS, tl.int64) * slots_stride
    if OF_SLOT:
        keys = load_rows(mapped, one, here, slots_stride, SIZE, HEADS, SIZE, ALL, WIDE)
        values = load_rows(beside, one, here, slots_stride, SIZE, HEADS, SIZE, ALL, WIDE)
    else:
        asked = load_rows(query, one, here, SIZE, query_stride, HEADS, SIZE, ALL, WIDE)
        upper = load_rows(grad, one, here, SIZE, HEADS * SIZE, HEADS, SIZE, ALL, WIDE)
        average = load_rows(out, one, here, SIZE, HEADS * SIZE, HEADS, SIZE, ALL, WIDE)
        log_sum = load_heads(lse, one, here, HEADS, ALL, 0.0)
        share = tl.sum(upper * average, 2)
        head = tl.arange(0, ALL)[None, :]
        tl.store(inner + one[:, None] * HEADS + head, share, mask=head < HEADS)
    total = tl.zeros([ALL, WIDE], dtype=tl.float32)
    of_values = tl.zeros([ALL, WIDE], dtype=tl.float32)
    for start in range(first, last, BLOCK):
        there, used = load_edges(edge, ends, keep, start, last, BLOCK)
        if OF_SLOT:
            asked = load_rows(query, there, used, SIZE, query_stride, HEADS, SIZE, ALL, WIDE)
            upper = load_rows(grad, there, used, SIZE, HEADS * SIZE, HEADS, SIZE, ALL, WIDE)
            log_sum = load_heads(lse, there, used, HEADS, ALL, 0.0)
            share = load_heads(inner, there, used, HEADS, ALL, 0.0)
        else:
            keys = load_rows(mapped, there, used, slots_stride, SIZE, HEADS, SIZE, ALL, WIDE)
            values = load_rows(beside, there, used, slots_stride, SIZE, HEADS, SIZE, ALL, WIDE)
        scores = tl.sum(asked * keys, 2) - log_sum
        weights = tl.exp(tl.where(used[:, None], scores, -float("inf")))
        slope = (weights * (tl.sum(upper * values, 2) - share))[:, :, None]
        if OF_SLOT:
            total += tl.sum(slope * asked, 0)
            of_values += tl.sum(weights[:, :, None] * upper, 0)
        else:
            total += tl.sum(slope * keys, 0)
    part = tl.program_id(0)
    if OF_SLOT:
        store_row(grads, total, row, is_all, slots_stride, SIZE, HEADS, SIZE, ALL, WIDE)
        upper_half = grads + tl.full([], HEADS, tl.int64) * slots_stride
        store_row(upper_half, of_values, row, is_all, slots_stride, SIZE, HEADS, SIZE, ALL, WIDE)
        store_row(sums, total, part, is_part, SIZE, 2 * HEADS * SIZE, HEADS, SIZE, ALL, WIDE)
        values_of = sums + HEADS * SIZE
        store_row(
            values_of, of_values, part, is_part, SIZE, 2 * HEADS * SIZE, HEADS, SIZE, ALL, WIDE
        )
    else:
        store_row(grads, total, row, is_all, SIZE, HEADS * SIZE, HEADS, SIZE, ALL, WIDE)
        store_row(sums, total, part, is_part, SIZE, HEADS * SIZE, HEADS, SIZE, ALL, WIDE)


@triton.jit
def _merge(
    sums, part_lse, long_row, long_parts, out, lse, head_stride, row_stride,
    HEADS: tl.constexpr, SIZE: tl.constexpr, ALL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Averages of the parts of a long row, weighted by their log-sum-exp; without it, sums."""
    number = tl.program_id(0)
    row, last = tl.load(long_row + number), tl.load(long_parts + number + 1)
    largest = tl.full([ALL], -float("inf"), dtype=tl.float32)
    total = tl.zeros([ALL], dtype=tl.float32)
    merged = tl.zeros([ALL, WIDE], dtype=tl.float32)
    for start in range(tl.load(long_parts + number), last, BLOCK):
        part = start + tl.arange(0, BLOCK)
        used = part < last
        parts = load_rows(sums, part, used, SIZE, HEADS * SIZE, HEADS, SIZE, ALL, WIDE)
        if part_lse is None:
            merged += tl.sum(parts, 0)
        else:
            scores = load_heads(part_lse, part, used, HEADS, ALL, -float("inf"))
            largest, total, merged = _add(scores, parts, largest, total, merged)
    if part_lse is not None:
        merged, log_sum = _finish(largest, total, merged)
        head = tl.arange(0, ALL)
        tl.store(lse + row * HEADS + head, log_sum, mask=head < HEADS)
    store_row(out, merged, row, row >= 0, head_stride, row_stride, HEADS, SIZE, ALL, WIDE)


def forward(
    by_target: EdgeSegments, keep: Tensor | None, query: Tensor, mapped: Tensor
) -> tuple[Tensor, Tensor]:
    """The output [M, H·d], and the log-sum-exp of the logits [M, H].

    by_target: the edges of every destination. keep: bool [E], the edges to use. query: [M, H·d],
    rows of adjacent numbers; mapped: [2H, S, d], the keys and then the values of slots.
    """
    launch, parts = _Launch.of(mapped, query, keep), len(by_target.part_row)
    out = query.new_empty(query.shape)
    lse = query.new_empty(len(query), launch.heads, dtype=torch.float32)
    sums, part_lse = lse.new_empty(parts, query.shape[1]), lse.new_empty(parts, launch.heads)
    launch(_forward, by_target, out, lse, sums, part_lse)
    launch.merge(by_target, sums, part_lse, out, lse, launch.size, query.shape[1])
    return out, lse


def backward(
    segments: tuple[EdgeSegments, EdgeSegments],
    keep: Tensor | None,
    query: Tensor,
    mapped: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of query and mapped, from what :func:`forward` took and returned.

    segments: the edges of every destination, and those of every slot.
    """
    launch, (by_target, by_slot) = _Launch.of(mapped, query, keep), segments
    of_query, of_mapped = torch.empty_like(out), torch.empty_like(mapped)
    inputs = grad.to(query.dtype).contiguous(), out, lse, torch.empty_like(lse)
    width = query.shape[1]
    for own, gradient, heads, head_stride, row_stride in (
        (by_target, of_query, launch.heads, launch.size, width),
        (by_slot, of_mapped, 2 * launch.heads, mapped.stride(0), launch.size),
    ):
        sums = lse.new_empty(len(own.part_row), heads * launch.size)
        launch(_backward, own, *inputs, gradient, sums, OF_SLOT=own is by_slot)
        launch.merge(own, sums, None, gradient, None, head_stride, row_stride, heads)
    return of_query, of_mapped


@dataclass(frozen=True)
class _Launch:
    """Starts a kernel, with the arguments that all of them have."""

    query: Tensor
    mapped: Tensor
    keep: Tensor | None
    heads: int
    size: int

    @classmethod
    def of(cls, mapped: Tensor, query: Tensor, keep: Tensor | None) -> _Launch:
        return cls(query, mapped, keep, len(mapped) // 2, mapped.shape[2])

    def __call__(self, kernel: Any, own: EdgeSegments, *tensors: Tensor, **constants: bool) -> None:
        parts = len(own.part_row)
        kernel[(parts + len(own.offsets) - 1,)](
            self.query, self.mapped, self.keep, own.edge, own.other, own.offsets,
            own.part_row, own.part_first, *tensors, parts, own.longest,
            self.query.stride(0), self.mapped.stride(0),
            **constants, **options(self.heads, self.size),
        )  # fmt: skip

    def merge(
        self,
        own: EdgeSegments,
        sums: Tensor,
        part_lse: Tensor | None,
        out: Tensor,
        lse: Tensor | None,
        head_stride: int,
        row_stride: int,
        heads: int | None = None,
    ) -> None:
        """Write the long rows, of which there may be none."""
        if len(own.long_row):
            _merge[(len(own.long_row),)](
                sums, part_lse, own.long_row, own.long_parts, out, lse, head_stride, row_stride,
                **options(heads or self.heads, self.size),
            )  # fmt: skip


def options(heads: int, size: int) -> dict[str, int]:
    """The compile-time arguments of a kernel, and its launch options."""
    every, wide = (1 << (number - 1).bit_length() for number in (heads, size))
    sizes = {"HEADS": heads, "SIZE": size, "ALL": every, "WIDE": wide}
    return {**sizes, "BLOCK": max(1, min(16, _TILE // (every * wide))), "num_warps": _WARPS}

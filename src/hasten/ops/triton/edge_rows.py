"""Rows of edges and nodes in Triton kernels: all heads are read and written at once."""

import triton
import triton.language as tl


@triton.jit
def load_rows(
    source, rows, used, head_stride, row_stride,
    HEADS: tl.constexpr, SIZE: tl.constexpr, ALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """[rows, ALL, WIDE] in float32: the heads of rows, padded with zeros."""
    head, column = tl.arange(0, ALL)[None, :, None], tl.arange(0, WIDE)[None, None, :]
    place = rows.to(tl.int64)[:, None, None] * row_stride + head.to(tl.int64) * head_stride + column
    mask = used[:, None, None] & (head < HEADS) & (column < SIZE)
    return tl.load(source + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_row(
    target, values, row, used, head_stride, row_stride,
    HEADS: tl.constexpr, SIZE: tl.constexpr, ALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write values [ALL, WIDE] to a row, if it is used."""
    head, column = tl.arange(0, ALL)[:, None], tl.arange(0, WIDE)[None, :]
    place = row.to(tl.int64) * row_stride + head.to(tl.int64) * head_stride + column
    tl.store(target + place, values, mask=used & (head < HEADS) & (column < SIZE))


@triton.jit
def load_heads(source, rows, used, HEADS: tl.constexpr, ALL: tl.constexpr, other):
    """[rows, ALL] of a tensor [N, HEADS]."""
    head = tl.arange(0, ALL)[None, :]
    place = rows.to(tl.int64)[:, None] * HEADS + head
    return tl.load(source + place, mask=used[:, None] & (head < HEADS), other=other)


@triton.jit
def load_edges(edge, ends, keep, start, last, BLOCK: tl.constexpr):
    """The rows at the other end of some edges, and which are used."""
    e = start + tl.arange(0, BLOCK)
    used = e < last
    there = tl.load(ends + e, mask=used, other=0)
    if keep is not None:
        used = used & tl.load(keep + tl.load(edge + e, mask=used, other=0), mask=used, other=False)
    return there, used

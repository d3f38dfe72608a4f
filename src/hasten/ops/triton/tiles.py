"""Square tiles of the scores of queries [T, D] and catalog rows [N, D]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

#: bytes of shared memory for the rows of a tile and two tiles of the rows it is compared with:
#: less than the 99 KiB that a block may have on every GPU from compute capability 8.0 on
_SHARED_BYTES = 96 << 10
#: programs where there is no GPU to ask: Triton's interpreter
_PROGRAMS = 4


def padded_width(width: int) -> int:
    """The columns of a tile of such rows: a power of two, and at least 16 for matrix products."""
    return max(16, 1 << (width - 1).bit_length())


@dataclass(frozen=True)
class Tiling:
    """How rows of one width are cut.

    block: rows and columns of a tile, a power of two. padded: columns of the rows in shared memory,
    a power of two. warps: of a program. programs: kernel instances that fill the device.
    """

    width: int
    padded: int
    block: int
    warps: int
    programs: int

    @classmethod
    def of(
        cls, x: Tensor, dtype: torch.dtype, block: int | None = None, lists: bool = False
    ) -> Tiling:
        """The tiling for rows x [T, D] in this type.

        block: instead of the chosen one. lists: whether the targets are lists, whose mask of a tile
        goes through shared memory.

        A tile of 128 x 128 keeps its float32 scores (64 KiB) and sums (128 x D x 4 bytes, at most
        64 KiB) in half of the registers of 256 threads; the other half is for operands. D = 256
        takes tiles of 64 x 64 (16 + 64 KiB). float32 operands, rounded to TF32 by the tensor
        cores, are twice as large: 64 x 64, and 32 x 32 for D = 256. The tests compile the kernels
        and check the bytes and registers that they take.
        """
        padded = padded_width(x.shape[1])
        if block is None:
            rows = _SHARED_BYTES // (3 * padded * dtype.itemsize)
            largest = 128 if dtype.itemsize == 2 and not lists else 64
            block = min(largest, 1 << (rows.bit_length() - 1))
        programs = _PROGRAMS
        if x.device.type == "cuda":
            programs = 2 * torch.cuda.get_device_properties(x.device).multi_processor_count
        warps = 8 if block == 128 or block * padded >= 1 << 13 else 4
        return cls(x.shape[1], padded, block, warps, programs)

    def tiles(self, rows: int) -> int:
        """The number of tiles that cover these rows."""
        return -(-rows // self.block)

    def split(self, own: int, other: int) -> tuple[int, int]:
        """Cut ``other`` tiles into parts until the device is full: (parts, tiles in each)."""
        each = -(-other // max(1, min(other, self.programs // own)))
        return -(-other // each), each

    @property
    def options(self) -> dict[str, int]:
        """The compile-time arguments of a kernel, and its launch options."""
        sizes = {"WIDTH": self.width, "PADDED": self.padded, "BLOCK": self.block}
        return {**sizes, "num_warps": self.warps, "num_stages": 2}


@dataclass(frozen=True)
class Targets:
    """The true pairs of queries and rows of one block of the catalog.

    item: int64; one for each query, in order, if starts is None. Otherwise query and item are the
    pairs sorted by tile, and starts [tiles of queries x tiles of items + 1] says where the pairs of
    each tile begin.
    """

    item: Tensor
    query: Tensor | None = None
    starts: Tensor | None = None

    @classmethod
    def build(
        cls, item: Tensor, query: Tensor | None, rows: int, first: int, count: int, tiling: Tiling
    ) -> Targets:
        """The targets among ``count`` catalog rows from ``first`` on.

        item: int64 [P] rows of the whole catalog; query: [P] or None for one target per query.
        rows: number of queries.
        """
        local = item - first
        if query is None:
            return cls(local)
        across = tiling.tiles(count)
        tiles = tiling.tiles(rows) * across
        tile = (query // tiling.block) * across + local // tiling.block
        tile = torch.where((local >= 0) & (local < count), tile, tiles)
        tile, order = torch.sort(tile, stable=True)
        starts = torch.searchsorted(tile, torch.arange(tiles + 1, device=tile.device))
        return cls(local[order], query[order], starts)


@dataclass(frozen=True)
class Part:
    """A block of the catalog in the type of the products, its biases and its targets.

    dtype: of the block itself, and of its gradient.
    """

    table: Tensor
    dtype: torch.dtype
    bias: Tensor | None
    targets: Targets

    def split(self, tiling: Tiling, queries: int) -> tuple[tuple[int, int], int]:
        """The grid of a kernel that owns tiles of queries, and the tiles that a program visits."""
        own = tiling.tiles(queries)
        splits, each = tiling.split(own, tiling.tiles(len(self.table)))
        return (own, splits), each


@dataclass(frozen=True)
class Scores:
    """The factors of the scores ``x eᵀ + b`` of all queries and catalog rows.

    x: [T, D] in the type of the products. dtype: of x itself, and of its gradient.
    """

    x: Tensor
    dtype: torch.dtype
    parts: Sequence[Part]
    tiling: Tiling

    @classmethod
    def build(
        cls,
        x: Tensor,
        blocks: Sequence[Tensor],
        bias: Tensor | None,
        item: Tensor,
        query: Tensor | None,
        dtype: torch.dtype,
        block: int | None,
    ) -> Scores:
        """Cut stacked blocks [N_i, D]. item, query, block: see Targets and Tiling."""
        tiling = Tiling.of(x, dtype, block, lists=query is not None)
        parts, first = [], 0
        for rows in blocks:
            stop = first + len(rows)
            targets = Targets.build(item, query, len(x), first, len(rows), tiling)
            biases = None if bias is None else bias[first:stop]
            parts.append(Part(rows.to(dtype).contiguous(), rows.dtype, biases, targets))
            first = stop
        return cls(x.to(dtype).contiguous(), x.dtype, parts, tiling)


@triton.jit
def load_rows(source, rows, count, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows of a contiguous [count, WIDTH] tensor, padded with zeros."""
    columns = tl.arange(0, PADDED)
    offsets = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    return tl.load(
        source + offsets, mask=(rows < count)[:, None] & (columns < WIDTH)[None, :], other=0.0
    )


@triton.jit
def is_target(query, item, tile, queries, target_item, target_query, starts):
    """1.0 where a query and an item are a true pair, of the shape of the tile, otherwise 0.0.

    query, item: indices that broadcast to the tile. tile: the tile's number.
    """
    if starts is None:
        target = tl.load(target_item + query, mask=query < queries, other=-1)
        matches = (item == target).to(tl.float32)
    else:
        matches = ((query < 0) & (item < 0)).to(tl.float32)
        # Triton does not prefetch in a loop around a loop; the lists of a tile are short
        for pair in range(tl.load(starts + tile), tl.load(starts + tile + 1)):
            same = (query == tl.load(target_query + pair)) & (item == tl.load(target_item + pair))
            matches += same.to(tl.float32)
    return matches


@triton.jit
def scores_of_tile(
    mine, i, number, across, table, bias, target_item, target_query, starts, queries, items,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The items of a tile, the scores of these queries, and 1.0 where a pair is true.

    mine, i: the rows and the numbers of the queries. number: the tile's; across: its place among
    the tiles of items.
    """
    j = across * BLOCK + tl.arange(0, BLOCK)
    theirs = load_rows(table, j, items, WIDTH, PADDED)
    scores = tl.dot(mine, tl.trans(theirs))
    if bias is not None:
        scores += tl.load(bias + j, mask=j < items, other=0.0).to(tl.float32)[None, :]
    true = is_target(i[:, None], j[None, :], number, queries, target_item, target_query, starts)
    return j, scores, true

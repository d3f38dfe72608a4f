"""Offsets of compressed sparse rows: 32 bits where they suffice, else 64.

PyTorch's sparse products take offsets and columns of one type (``embedding_bag`` converts all
columns to 64 bits in every call if the offsets have them). So a product with 64-bit offsets is
computed in blocks of rows whose entries 32 bits number, and columns always have 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.errors import DataError

#: most entries, rows and columns that int32 numbers
MAX_ENTRIES = 2**31 - 1


def offset_type(entries: int) -> torch.dtype:
    """The type of offsets of so many entries."""
    return torch.int32 if entries <= MAX_ENTRIES else torch.int64


def offset_tensor(offsets: Int64) -> Tensor:
    """[M + 1] ascending offsets in 32 bits if they fit, else in 64."""
    # converted by NumPy: every operation of PyTorch takes microseconds of a step
    return torch.from_numpy(offsets.astype(np.int32 if offsets[-1] <= MAX_ENTRIES else np.int64))


def row_blocks(offsets: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Blocks of at most :data:`MAX_ENTRIES` entries: rows, entries, offsets from the first.

    offsets: int64 [M + 1], those of the blocks int32. Raises DataError if a row has more entries.
    """
    host = offsets.cpu().numpy()
    first = 0
    while first < len(host) - 1:
        start = int(host[first])
        stop = int(np.searchsorted(host, start + MAX_ENTRIES, "right")) - 1
        if stop == first:
            raise DataError(
                f"a node has {int(host[first + 1]) - start:,} edges, and at most {MAX_ENTRIES:,} "
                "can be added up: leave out edges of the most frequent nodes"
            )
        entries = slice(start, int(host[stop]))
        yield slice(first, stop), entries, (offsets[first : stop + 1] - start).int()
        first = stop

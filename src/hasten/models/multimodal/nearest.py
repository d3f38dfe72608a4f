"""Nearest rows by cosine, and users with the most common items, one block of rows at a time.

Neither holds an N×N matrix: a block of B rows or users is compared with all others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64, ragged_offsets, ragged_positions
from hasten.ops.graph.csr import CSR

_ROWS = 1024
#: counts of pairs of users in memory at a time
_COUNTS = 1 << 22


def nearest(x: Tensor, k: int, rows: int = _ROWS) -> Tensor:
    """int64 [N, k'] the k' = min(k, N) most similar rows by cosine, each row itself included.

    x: [N, d] without gradient; products in float32. A row of zeros is only similar to itself: its
    other entries are -1.
    """
    count = len(x)
    k = min(k, count)
    unit = F.normalize(x.float(), dim=1)
    empty = ~unit.any(dim=1)
    indices = torch.empty(count, k, dtype=torch.int64, device=x.device)
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        block_rows = torch.arange(start, stop, device=x.device)
        similarity = unit[start:stop] @ unit.T
        similarity[:, empty] = -torch.inf
        similarity[block_rows - start, block_rows] = torch.inf
        values, neighbors = similarity.topk(k, dim=1)
        neighbors[torch.isneginf(values)] = -1
        lonely = torch.where(empty[start:stop])[0]
        neighbors[lonely, 1:] = -1
        indices[start:stop] = neighbors
    return indices


def companions(pairs: CSR, items: int, k: int) -> tuple[Int64, Int64, Int64]:
    """For each user, the k other users with the most common items: user, other, count [n].

    pairs: the distinct items of each user. Fewer than k if a user shares items with fewer users.
    Ties: the user with fewer items first, then the user with the smaller number. Sorted by user,
    then by rank.
    """
    users = len(pairs)
    # ranks for ties: a larger index is better
    standing = np.lexsort((np.arange(users), pairs.lengths))[::-1]
    order = np.argsort(pairs.items, kind="stable")
    offsets = ragged_offsets(pairs.items, items)
    by_item = CSR(offsets, pairs.rows[order])
    blocks: list[tuple[Int64, Int64, Int64]] = []
    step = max(1, _COUNTS // max(1, users))
    for start in range(0, users, step):
        block = pairs.take(np.arange(start, min(start + step, users)))
        blocks.append(_companions(block, by_item, start, standing, k))
    columns = (np.concatenate(column) for column in zip(*blocks, strict=True))
    user, other, count = columns
    return user, other, count


def _companions(
    block: CSR, by_item: CSR, start: int, standing: Int64, k: int
) -> tuple[Int64, Int64, Int64]:
    """The same for the users of a block. standing: all users by rank for ties, best last."""
    users = len(standing)
    met, lengths = ragged_positions(by_item.offsets, block.items)
    row = np.repeat(block.rows, np.diff(lengths))
    counts = np.bincount(row * users + by_item.items[met], minlength=len(block) * users)
    counts = counts.reshape(len(block), users)
    counts[np.arange(len(block)), start + np.arange(len(block))] = 0
    # sorts by count, then by rank
    keys = counts[:, standing] * users + np.arange(users)
    k = min(k, users)
    best = torch.from_numpy(keys).topk(k, dim=1).values.numpy()
    count, rest = np.divmod(best, users)
    row, place = np.nonzero(count)
    return start + row, standing[rest[row, place]], count[row, place]

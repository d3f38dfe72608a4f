"""Nearest rows by cosine, and users with the most common items, one block of rows at a time.

Neither holds an N×N matrix: a block of B rows or users is compared with all others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64, order_by, ragged_offsets, ragged_positions, ranges
from hasten.ops.graph.csr import CSR

_ROWS = 1024
#: counts of pairs of users in memory at a time
_COUNTS = 1 << 22
#: a user who shares items more often than this times the number of users is counted with all users
_DENSE = 1 / 4


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
    # the larger number is better in a tie
    by_rank = np.lexsort((np.arange(users), pairs.lengths))[::-1]
    rank = np.empty(users, np.int64)
    rank[by_rank] = np.arange(users)
    order = np.argsort(pairs.items, kind="stable")
    holders = CSR(ragged_offsets(pairs.items, items), rank[pairs.rows[order]])
    met = np.append(0, np.cumsum(holders.lengths[pairs.items]))
    met = np.diff(met[pairs.offsets])
    many = met > _DENSE * users
    blocks: list[tuple[Int64, Int64, Int64]] = []
    for best, chosen in ((_best_of_all, many), (_best_of_met, ~many)):
        numbers = np.flatnonzero(chosen)
        work = np.maximum(met[numbers], users if best is _best_of_all else 0)
        for start, stop in ranges(work, _COUNTS):
            block = numbers[start:stop]
            row, other, count = best(pairs.take(block), rank[block], holders, users, k)
            blocks.append((block[row], by_rank[other], count))
    user, other, count = (np.concatenate(column) for column in zip(*blocks, strict=True))
    order = np.argsort(user, kind="stable")
    return user[order], other[order], count[order]


def _best_of_all(
    block: CSR, own_ranks: Int64, holders: CSR, users: int, k: int
) -> tuple[Int64, Int64, Int64]:
    """Of the users with these items: row, rank of the other and count, from an array of all counts.

    holders: the ranks of the users of each item.
    """
    counts = np.bincount(_met(block, holders, users), minlength=len(block) * users)
    counts = counts.reshape(len(block), users)
    counts[np.arange(len(block)), own_ranks] = 0
    # sorts by count, then by rank
    keys = counts * users + np.arange(users)
    best = torch.from_numpy(keys).topk(min(k, users), dim=1).values.numpy()
    count, other = np.divmod(best, users)
    row, place = np.nonzero(count)
    return row, other[row, place], count[row, place]


def _best_of_met(
    block: CSR, own_ranks: Int64, holders: CSR, users: int, k: int
) -> tuple[Int64, Int64, Int64]:
    """The same for users who share items with few others, whose ranks are sorted."""
    codes = np.sort(_met(block, holders, users))
    first = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])[: len(codes)])
    counts = np.diff(np.append(first, len(codes)))
    row, other = np.divmod(codes[first], users)
    kept = other != own_ranks[row]
    row, other, counts = row[kept], other[kept], counts[kept]
    order = order_by(row, counts.max(initial=0) - counts, users - 1 - other)
    place = np.arange(len(row)) - ragged_offsets(row, len(block))[row]
    order = order[place < k]
    return row[order], other[order], counts[order]


def _met(block: CSR, holders: CSR, users: int) -> Int64:
    """``row * users + rank`` for each user of each item of each row."""
    met, offsets = ragged_positions(holders.offsets, block.items)
    return np.repeat(block.rows * users, np.diff(offsets)) + holders.items[met]

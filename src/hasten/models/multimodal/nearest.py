"""The nearest rows by cosine, and the users with the most items in common, block by block.

Neither ever holds a square matrix: of N rows or users a block of B at a time is compared with all.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64, ragged_offsets, ragged_positions
from hasten.ops.graph.csr import CSR

_ROWS = 1024
#: counts of users with users that are held at once
_COUNTS = 1 << 22


def nearest(x: Tensor, k: int, rows: int = _ROWS) -> Tensor:
    """int64 [N, k'] the k' = min(k, N) rows most alike by cosine, each row itself among them.

    x: [N, d] without gradient, products in float32. A row of zeros is like none: its places after
    itself are -1, and it is nobody's neighbour but its own.
    """
    count = len(x)
    k = min(k, count)
    unit = F.normalize(x.float(), dim=1)
    empty = ~unit.any(dim=1)
    found = torch.empty(count, k, dtype=torch.int64, device=x.device)
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        own = torch.arange(start, stop, device=x.device)
        alike = unit[start:stop] @ unit.T
        alike[:, empty] = -torch.inf
        alike[own - start, own] = torch.inf
        values, places = alike.topk(k, dim=1)
        places[torch.isneginf(values)] = -1
        lonely = torch.where(empty[start:stop])[0]
        places[lonely, 1:] = -1
        found[start:stop] = places
    return found


def companions(pairs: CSR, items: int, k: int) -> tuple[Int64, Int64, Int64]:
    """The k other users with whom each user shares the most items: user, other, count [n].

    pairs: each user's distinct items. Fewer than k where a user shares items with fewer. Of equal
    counts the user with fewer items comes first, for whom they are more of what there is; then the
    user of the smaller number. Users come in order, their others as they come first.
    """
    users = len(pairs)
    # who comes first, of equal counts, last: so that a larger place in it is better
    standing = np.lexsort((np.arange(users), pairs.lengths))[::-1]
    order = np.argsort(pairs.items, kind="stable")
    offsets = ragged_offsets(pairs.items, items)
    by_item = CSR(offsets, pairs.rows[order])
    found: list[tuple[Int64, Int64, Int64]] = []
    step = max(1, _COUNTS // max(1, users))
    for start in range(0, users, step):
        block = pairs.take(np.arange(start, min(start + step, users)))
        found.append(_companions(block, by_item, start, standing, k))
    columns = (np.concatenate(column) for column in zip(*found, strict=True))
    user, other, count = columns
    return user, other, count


def _companions(
    block: CSR, by_item: CSR, start: int, standing: Int64, k: int
) -> tuple[Int64, Int64, Int64]:
    """The same for the users of a block. standing: all users, the better at the end."""
    users = len(standing)
    met, lengths = ragged_positions(by_item.offsets, block.items)
    row = np.repeat(block.rows, np.diff(lengths))
    counts = np.bincount(row * users + by_item.items[met], minlength=len(block) * users)
    counts = counts.reshape(len(block), users)
    counts[np.arange(len(block)), start + np.arange(len(block))] = 0
    # one number that orders by count, then by standing
    keys = counts[:, standing] * users + np.arange(users)
    k = min(k, users)
    best = torch.from_numpy(keys).topk(k, dim=1).values.numpy()
    count, rest = np.divmod(best, users)
    row, place = np.nonzero(count)
    return start + row, standing[rest[row, place]], count[row, place]

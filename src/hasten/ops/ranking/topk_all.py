"""The exact top k of the whole catalog, block by block.

Candidates are ordered by score, then by lower id. ``torch.topk`` may return any of several equal
elements; so it is asked for k + 1, and rows whose k-th place is tied are searched again by int64
keys of score and id, which have no ties. The same keys order the results and merge the blocks: the
result depends neither on ``topk``'s order of equal elements nor on the device.

Scores of -inf and NaN are not candidates and are never selected.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.column_blocks import ColumnBlocks, Positions
from hasten.ops.ranking.lists import ListedIds
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.transfer import to_device

#: columns of a block if not all fit; wider than in ranking, as each is selected from and merged
_COLUMNS = 8192
_LOWER = 2**32 - 1


@torch.no_grad()
def topk_all(
    scorer: Scorer,
    queries: int,
    count: int,
    k: int,
    excluded: CSR | None = None,
    allowed: Int64 | None = None,
    *,
    columns: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The k best candidates of each query, best first: ids int64 [Q, k], scores float32 [Q, k].

    scorer: scores of ``queries`` queries against catalog rows 0..count-1. excluded: one row per
    query, ids that it must not get. allowed: the only ids that any query may get (blocks without
    one are not scored); None: all. If there are fewer than k candidates, the rest is -1 with a
    score of -inf. columns: the width of a block; None: as in ``rank_all``.
    """
    assert k > 0
    assert count < _LOWER
    assert excluded is None or len(excluded) == queries
    blocks = ColumnBlocks.choose(queries, count, columns, _COLUMNS)
    hidden: Positions | None = None
    listed = None if allowed is None else np.unique(allowed)
    best: Tensor | None = None
    for number, (start, stop) in enumerate(blocks):
        part = None
        if listed is not None:
            part = listed[np.searchsorted(listed, start) : np.searchsorted(listed, stop)]
            if not len(part):
                continue
        scores = blocks.scores(scorer, number)
        if excluded is not None:
            if hidden is None:
                lists = to_device(ListedIds.of(excluded), scores.device)
                hidden = Positions.build(lists.rows, lists.items, blocks)
            hidden.fill(scores, number, -torch.inf)
        if part is None:
            ids = torch.arange(start, stop, device=scores.device)
        else:
            ids = torch.from_numpy(part).to(scores.device)
            scores = scores.index_select(1, ids - start)
        rows: Tensor | None = None
        if best is not None and best.shape[1] == k and scores.device.type == "cpu":
            # most blocks have no better candidate for most queries, and equal ones have higher ids
            rows = torch.nonzero(~(scores.amax(1) <= _scores(best[:, -1])))[:, 0]
            scores = scores.index_select(0, rows)
        best_scores, column = _best(scores, k)
        keys = _key(best_scores, ids[column])
        if best is None:
            best = keys.topk(min(k, keys.shape[1]), dim=1).values
        elif rows is None:
            best = torch.cat([best, keys], 1)
            best = best.topk(min(k, best.shape[1]), dim=1).values
        else:
            best[rows] = torch.cat([best[rows], keys], 1).topk(k, dim=1).values
    if best is None:  # no candidate is allowed
        best = torch.empty((queries, 0), dtype=torch.int64)
    return _unpack(best, k)


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The scores and columns of each row's best min(k, width); equal scores in any order."""
    width = scores.shape[1]
    values, column = scores.topk(min(k + 1, width), dim=1)
    if bool(values[:, 0].isnan().any()):  # NaN comes first in torch's order
        return _best(scores.masked_fill(scores.isnan(), -torch.inf), k)
    if width <= k:
        return values, column
    contested = (values[:, k] == values[:, k - 1]) & (values[:, k] > -torch.inf)
    values, column = values[:, :k], column[:, :k]
    rows = contested.nonzero()[:, 0]
    if len(rows):
        row_scores = scores[rows]
        ids = torch.arange(width, device=scores.device)
        place = _key(row_scores, ids).topk(k, dim=1).indices
        values[rows], column[rows] = row_scores.gather(1, place), place
    return values, column


def _key(scores: Tensor, ids: Tensor) -> Tensor:
    """int64 keys in the order of (score, lower id); NaN as -inf.

    The upper half is the float's bit pattern, with the lower 31 bits of negative numbers flipped
    so that it increases with the number; adding 0 turns -0 into 0.
    """
    bits = (scores + 0.0).masked_fill(scores.isnan(), -torch.inf).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    return (ordered << 32) | (_LOWER - ids)


def _scores(keys: Tensor) -> Tensor:
    """The scores of :func:`_key`, float32."""
    ordered = (keys >> 32).to(torch.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def _unpack(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The inverse of :func:`_key`, padded to k columns; -1 if the score is -inf."""
    scores = _scores(keys)
    ids = (_LOWER - (keys & _LOWER)).masked_fill(scores == -torch.inf, -1)
    missing = (0, k - keys.shape[1])
    pad = torch.nn.functional.pad
    return pad(ids, missing, value=-1), pad(scores, missing, value=-torch.inf)

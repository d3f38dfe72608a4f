"""The best k of the whole catalogue for every query, exactly, in little memory.

Candidates are ordered by score, equal scores by lower id. Within a block of columns the search
goes by groups of ``GROUP`` neighbours: ordered by (their best score, lower id), the first k groups
hold the block's best k, because every better group contributes at least one better candidate. So
one maximum is taken of every score, and only k·GROUP scores a query are looked at again. Ids and
scores are then packed into one int64 key, whose order has no ties: the result does not depend on
how ``torch.topk`` orders equal elements, nor on the device.

A score of -inf or NaN marks what is no candidate: it is never selected.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hasten.data.tables import Int64
from hasten.models.seam import Scorer
from hasten.ops.blocks import Blocks, Positions
from hasten.ops.csr import CSR

#: neighbouring candidates whose maximum is taken first
GROUP = 64
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

    scorer: scores of ``queries`` queries against catalogue rows 0..count-1.
    excluded: one row a query, ids that it must not get. allowed: the only ids anyone may get
    (blocks without one are not scored); None: all. Where fewer than k candidates exist the rest
    is -1 with a score of -inf. columns: as in ``rank_all``.
    """
    assert k > 0
    assert count < _LOWER
    assert excluded is None or len(excluded) == queries
    blocks = Blocks.choose(queries, count, columns)
    hidden = None
    if excluded is not None:
        hidden = Positions.build(excluded.rows, excluded.items, blocks)
    listed = None if allowed is None else np.unique(allowed)
    best: Tensor | None = None
    for number, (start, stop) in enumerate(blocks):
        part = None
        if listed is not None:
            part = listed[np.searchsorted(listed, start) : np.searchsorted(listed, stop)]
            if not len(part):
                continue
        scores = blocks.scores(scorer, number)
        if hidden is not None:
            hidden.fill(scores, number, -torch.inf)
        if part is None:
            found, column = _best(scores, k)
            ids = column + start
        else:
            ids = torch.from_numpy(part).to(scores.device)
            found, column = _best(scores.index_select(1, ids - start), k)
            ids = ids[column]
        keys = _key(found, ids)
        best = keys if best is None else torch.cat([best, keys], 1)
        best = best.topk(min(k, best.shape[1]), dim=1).values
    if best is None:  # nothing is allowed
        best = torch.empty((queries, 0), dtype=torch.int64)
    return _unpack(best, k)


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Scores and columns of each row's best min(k, width), in no particular order."""
    width = scores.shape[1]
    groups = width // GROUP
    if groups <= k:
        return _select(scores, torch.arange(width, device=scores.device).expand_as(scores), k)
    top = scores[:, : groups * GROUP].view(len(scores), groups, GROUP).amax(2)
    if width % GROUP:
        top = torch.cat([top, scores[:, groups * GROUP :].amax(1, keepdim=True)], 1)
    if bool(top.isnan().any()):  # a NaN hides its group's maximum
        return _best(scores.masked_fill(scores.isnan(), -torch.inf), k)
    number = torch.arange(top.shape[1], device=scores.device).expand_as(top)
    _, chosen = _select(top, number, k)
    column = chosen[:, :, None] * GROUP + torch.arange(GROUP, device=scores.device)
    column = column.flatten(1)
    found = scores.gather(1, column.clamp(max=width - 1))
    return _select(found.masked_fill_(column >= width, -torch.inf), column, k)


def _select(scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Scores and ids of each row's best k by (score, lower id)."""
    place = _key(scores, ids).topk(min(k, scores.shape[1]), dim=1).indices
    return scores.gather(1, place), ids.gather(1, place)


def _key(scores: Tensor, ids: Tensor) -> Tensor:
    """int64 keys in the order of (score, lower id); NaN as -inf.

    The upper half is the float's bit pattern, with the lower 31 bits of negative numbers flipped
    so that it grows with the number; adding 0 makes one of the two zeros.
    """
    bits = (scores + 0.0).masked_fill(scores.isnan(), -torch.inf).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    return (ordered << 32) | (_LOWER - ids)


def _unpack(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The inverse of :func:`_key`, padded to k columns; -1 where the score is -inf."""
    ordered = (keys >> 32).to(torch.int32)
    scores = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
    ids = (_LOWER - (keys & _LOWER)).masked_fill(scores == -torch.inf, -1)
    missing = (0, k - keys.shape[1])
    pad = torch.nn.functional.pad
    return pad(ids, missing, value=-1), pad(scores, missing, value=-torch.inf)


@torch.no_grad()
def topk_all_reference(
    scorer: Scorer,
    queries: int,
    count: int,
    k: int,
    excluded: CSR | None = None,
    allowed: Int64 | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`topk_all` as its definition reads: sort every row's candidates."""
    scores = scorer.block(0, count).to(torch.float32).tolist()
    ids = torch.full((queries, k), -1)
    best = torch.full((queries, k), -torch.inf)
    for row in range(queries):
        free = set(range(count) if allowed is None else allowed.tolist())
        if excluded is not None:
            free -= set(excluded.row(row).tolist())
        candidates = [(-scores[row][item], item) for item in free if scores[row][item] > -torch.inf]
        for place, (score, item) in enumerate(sorted(candidates)[:k]):
            ids[row, place], best[row, place] = item, -score
    return ids, best

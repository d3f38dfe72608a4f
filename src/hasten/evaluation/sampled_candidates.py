"""Evaluation against 100 sampled candidates that the user has not interacted with.

``uni100``: uniform, with replacement. ``pop100``: without replacement, by the number of
interactions in all parts, as in the published code of BERT4Rec (Sun et al. 2019). Sampling with
replacement and skipping items that were drawn before is the same as successive sampling without
replacement. The samples depend only on the seed, the part and the user.
"""

from __future__ import annotations

import numpy as np
import torch

from hasten.arrays import Int64
from hasten.data.tables import TEST, TRAIN, VALID, Dataset
from hasten.errors import ConfigurationError, DataError
from hasten.ops.graph.csr import CSR
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import integers

#: the number of other candidates
SAMPLED = 100
#: users of ``uni100`` at a time
_USERS = 4096
#: draws of ``pop100`` at a time
_DRAWS = 512


def sampled_candidates(
    dataset: Dataset, users: Int64, targets: CSR, base: int, by_popularity: bool
) -> Int64:
    """[Q, 101] the target of each query and its samples.

    base: key of the random numbers. Raises ConfigurationError if a query has several targets, and
    DataError if a user has met too many items.
    """
    if np.any(targets.lengths > 1):
        name = "pop100" if by_popularity else "uni100"
        raise ConfigurationError(
            f"evaluation.candidates {name} ranks one target a user, but this split gives some "
            f"users several ({dataset.split}): use full"
        )
    met = CSR.of(dataset.histories(TRAIN, VALID, TEST).take(users)).distinct()
    draw = _by_popularity if by_popularity else _uniform
    return np.concatenate([targets.items[:, None], draw(dataset, users, met, base)], axis=1)


def _uniform(dataset: Dataset, users: Int64, met: CSR, base: int) -> Int64:
    count = len(dataset.items)
    _refuse_too_few(dataset, users, met.lengths, count - met.lengths, 1)
    known = KnownItems.build(met.rows, met.items, len(users), count)
    candidates = np.empty((len(users), SAMPLED), np.int64)
    for start in range(0, len(users), _USERS):  # in parts: 12 times the memory while drawing
        rows = torch.arange(start, min(start + _USERS, len(users)))[:, None]
        key = torch.from_numpy(users)[rows]
        candidates[start : start + _USERS] = negatives(
            known, rows, base, key, torch.arange(SAMPLED)
        )
    return candidates


def _by_popularity(dataset: Dataset, users: Int64, met: CSR, base: int) -> Int64:
    popularity = np.bincount(dataset.interactions.item, minlength=len(dataset.items))
    free = int((popularity > 0).sum()) - met.lengths
    _refuse_too_few(dataset, users, met.lengths, free, SAMPLED)
    ends = np.cumsum(popularity)
    candidates = np.empty((len(users), SAMPLED), np.int64)
    for row, user in enumerate(users.tolist()):
        taken, start = met.row(row), 0
        while len(taken) < len(met.row(row)) + SAMPLED:
            counters = torch.arange(start, start + _DRAWS)
            random = integers(
                int(ends[-1]), base, torch.full_like(counters, user), counters
            ).numpy()
            items = np.searchsorted(ends, random, side="right")
            first = np.sort(np.unique(items, return_index=True)[1])
            taken = np.append(taken, items[first][~np.isin(items[first], taken)])
            start += _DRAWS
        candidates[row] = taken[len(met.row(row)) :][:SAMPLED]
    return candidates


def _refuse_too_few(dataset: Dataset, users: Int64, met: Int64, free: Int64, least: int) -> None:
    """Raise DataError if a user has fewer than ``least`` items that may be drawn."""
    short = np.flatnonzero(free < least)
    if len(short):
        label = dataset.users.take(users[short[:1]])[0].as_py()
        raise DataError(
            f"user {label!r} has met {met[short[0]]:,} of {len(dataset.items):,} items, so there "
            f"are not {least} others to draw: use evaluation.candidates full"
        )

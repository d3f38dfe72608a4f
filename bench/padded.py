"""Padded arrays of sequences and uniform negatives, for the baselines that train on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.data import Int64, Sequences


@dataclass(frozen=True)
class Padded:
    """Inputs, next items and personalized times of every user: [U, L], 0 is padding.

    counts: [U] inputs of each user. times: in the user's smallest gap between inputs, from 1.
    """

    inputs: Int64
    targets: Int64
    times: Int64
    counts: Int64

    def trained(self) -> Int64:
        """The users with a target."""
        return np.flatnonzero(self.counts)


def padded(data: Sequences, length: int, drop: int, *, left: bool = False) -> Padded:
    """The last ``length`` inputs of each user, without the last ``drop`` events.

    left: pad on the left, else on the right.
    """
    last = data.offsets[1:] - drop - 1  # a target only
    counts = np.clip(last - data.offsets[:-1], 0, length)
    place = np.arange(length) - (length - counts[:, None]) * left
    real = (place >= 0) & (place < counts[:, None])
    source = np.where(real, (last - counts)[:, None] + place, 0)
    targets = data.items[np.where(real, source + 1, 0)]
    times = _personalized(data.times[source], real)
    return Padded(np.where(real, data.items[source], 0), np.where(real, targets, 0), times, counts)


def _personalized(times: Int64, real: NDArray[np.bool_]) -> Int64:
    """Times since the first, in the smallest gap, from 1 (TiSASRec, section 3.1)."""
    most = np.iinfo(np.int64).max
    gaps = np.diff(times, axis=1)
    known = real[:, 1:] & real[:, :-1] & (gaps > 0)
    unit = np.where(known, gaps, most).min(axis=1, initial=most)
    since = times - np.where(real, times, most).min(axis=1, keepdims=True)
    scaled = np.rint(since / np.where(unit == most, 1, unit)[:, None]) + 1
    return np.where(real, scaled, 0).astype(np.int64)


class NegativeSampler:
    """Uniform items that a user has never met."""

    def __init__(self, data: Sequences) -> None:
        self._stride = data.catalog + 1
        user = np.repeat(np.arange(len(data)), data.lengths)
        self._met = np.unique(user * self._stride + data.items)

    def draw(self, users: Int64, generator: np.random.Generator) -> Int64:
        """One item, from 1, for each of these users."""
        drawn = np.empty_like(users)
        open_ = np.arange(len(users))
        while len(open_):
            drawn[open_] = generator.integers(1, self._stride, len(open_))
            keys = users[open_] * self._stride + drawn[open_]
            found = np.searchsorted(self._met, keys)
            open_ = open_[self._met[np.minimum(found, len(self._met) - 1)] == keys]
        return drawn

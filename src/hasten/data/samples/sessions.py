"""The sessions of the built-in sample ``sittings``: only the times tell which item is next.

A listener goes around a ring of records. The pause before the last record determines the next one:
within a session it is the next in the ring; after the first record of a day the one a third of the
ring ahead; after a longer absence the one two thirds ahead. Every listener has a pace of their own:
a pause that is short for one is long for another.
"""

from __future__ import annotations

import numpy as np

from hasten.arrays import Int64
from hasten.data.samples.base import integers, uniform

FIRST_SECOND = 1_672_617_600  # 2023-01-02
#: seconds of the shortest pause in a session, for the three paces
_PACES = np.array([60, 240, 960])
#: shares of the three kinds of pauses, and the shortest of each in units of the pace; the longest
#: is a quarter longer
_SHARES = np.array([0.5, 0.8])
_PAUSES = np.array([1, 12, 600])
#: how often any record of the ring may follow
_ANY = 0.1


def walks(
    lengths: Int64, offsets: Int64, tastes: Int64, items: int, genres: int, seed: int
) -> tuple[Int64, Int64]:
    """Items and times of all listeners' events, listener by listener.

    lengths, offsets: events of each; tastes: [U, 2], of which the first is theirs. Item i stands in
    the ring of genre i % genres at place i // genres.
    """
    events = int(offsets[-1])
    drawn = [uniform(events, part, seed) for part in range(10, 14)]
    firsts = offsets[:-1]
    user = np.repeat(np.arange(len(lengths)), lengths)
    pace = _PACES[integers(3, len(lengths), 14, seed)]
    kind = np.searchsorted(_SHARES, drawn[0], side="right")
    pause = np.floor(pace[user] * _PAUSES[kind] * (1 + 0.25 * drawn[1])).astype(np.int64)
    kind[firsts] = 2
    start = integers(300 * 86400, len(firsts), 15, seed)
    pause[firsts] = FIRST_SECOND + start
    genre = tastes[user, 0]
    size = (items - genre + genres - 1) // genres
    steps = np.empty(events, np.int64)
    steps[1:] = (1 + kind[:-1] * (size[1:] // 3)) % size[1:]
    anywhere = np.floor(size * drawn[3]).astype(np.int64)
    steps = np.where(drawn[2] < _ANY, anywhere, steps)
    steps[firsts] = anywhere[firsts]
    place = _sums(steps, offsets) % size
    return place * genres + genre, _sums(pause, offsets)


def _sums(values: Int64, offsets: Int64) -> Int64:
    """The running sum of each row."""
    total = np.cumsum(values)
    before = total[offsets[:-1]] - values[offsets[:-1]]
    return total - np.repeat(before, np.diff(offsets))

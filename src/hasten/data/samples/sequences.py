"""Built-in samples of item sequences, made from a seed, with planted structure to learn.

``sequences``: listeners with one or two preferred genres. Every genre is a ring of records; a
listener mostly continues with one of the next three in the ring (so the last item predicts the
next), sometimes jumps within the genre (to records near the start of the ring, which are popular)
or changes to the other genre.

``sittings``: only the times tell which record is next. A listener goes around a ring of records.
The pause before the last record determines the next one: within a session it is the next in the
ring; after the first record of a day the one a third of the ring ahead; after a longer absence the
one two thirds ahead. Every listener has a pace of their own: a pause that is short for one is long
for another.

Only the counter-based generator and exact arithmetic are used: the bytes do not depend on the
version of numpy.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import counter_random as counter
from hasten.data.samples.base import SampleSet, integers, permutation, uniform
from hasten.errors import DataError

GENRES = (
    "Jazz", "Blues", "Folk", "Soul", "Rock", "Techno",
    "Opera", "Punk", "Reggae", "Metal", "Country", "Ambient",
)  # fmt: skip
_USERS, _ITEMS, _EVENTS = 1200, 400, 24_000
_FOLLOW, _CHANGE = 0.75, 0.12
_SECOND_TASTE = 0.5
#: how long the listeners' histories are, relative to each other
_LENGTHS = np.array([6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 30, 38, 46, 51])
#: how many listeners the genres have, relative to each other
_GENRE_WEIGHTS = 360_360 // np.arange(3, 3 + len(GENRES))
_FIRST_SECOND = 1_672_617_600  # 2023-01-02
#: seconds of the shortest pause in a session, for the three paces
_PACES = np.array([60, 240, 960])
#: shares of the three kinds of pauses, and the shortest of each in units of the pace; the longest
#: is a quarter longer
_SHARES = np.array([0.5, 0.8])
_PAUSES = np.array([1, 12, 600])
#: how often any record of the ring may follow
_ANY = 0.1


def make_sequences(
    users: int | None = None,
    items: int | None = None,
    events: int | None = None,
    seed: int = 0,
    sessions: bool = False,
) -> SampleSet:
    """The sample ``sequences`` at any size; sizes left out follow from those given.

    sessions: the sample ``sittings``.

    Raises:
        DataError: sizes that do not go together.
    """
    if events is None:
        events = _EVENTS if users is None else users * (_EVENTS // _USERS)
    if users is None:
        users = max(1, events * _USERS // _EVENTS)
    if items is None:
        items = max(_ITEMS, users // 10)
    if users < 1 or items < 8:
        raise DataError(f"{users} users and {items} items: at least 1 user and 8 items are needed")
    if events < 3 * users:
        raise DataError(f"{events} events for {users} users: at least 3 a user are needed")
    if max(users, items) > 2**31 - 1:
        raise DataError("at most 2^31-1 users and items")
    genres = min(len(GENRES), items // 4)
    lengths = _lengths(users, events, seed)
    offsets = np.zeros(users + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    tastes = _tastes(users, genres, seed)
    walks = _walks_in_sessions if sessions else _walks
    item, time = walks(lengths, offsets, tastes, items, genres, seed)
    place = permutation(items, 9, seed)
    label = np.empty(items, np.int64)
    label[place] = np.arange(1, items + 1)
    table = pa.table(
        {
            "user_id": np.repeat(np.arange(1, users + 1), lengths),
            "item_id": label[item],
            "timestamp": time,
        }
    )
    return SampleSet(table, _names(label, genres))


#: the sample ``sittings``, as :func:`make_sequences` makes it
make_sittings = partial(make_sequences, sessions=True)


def _lengths(users: int, events: int, seed: int) -> Int64:
    """Events of each user: at least 3, skewed, and exactly ``events`` together."""
    random = integers(len(_LENGTHS), users, 1, seed)
    weight = _LENGTHS[random]
    lengths: Int64 = 3 + weight * (events - 3 * users) // int(weight.sum())
    lengths[: events - int(lengths.sum())] += 1  # less than one a user was rounded off
    return lengths


def _tastes(users: int, genres: int, seed: int) -> Int64:
    """Two genres a user [U, 2], the same twice for those with one taste."""
    edges = np.cumsum(_GENRE_WEIGHTS[:genres])
    tastes = []
    for part in (2, 3):
        random = uniform(users, part, seed)
        tastes.append(np.searchsorted(edges, random * edges[-1], side="right"))
    both = uniform(users, 4, seed) < _SECOND_TASTE
    chosen = np.stack([tastes[0], np.where(both, tastes[1], tastes[0])], axis=1)
    limited: Int64 = np.minimum(chosen, genres - 1)
    return limited


def _walks(
    lengths: Int64,
    offsets: Int64,
    tastes: Int64,
    items: int,
    genres: int,
    seed: int,
) -> tuple[Int64, Int64]:
    """Items and times of all users, one step of all walks at a time.

    Item i stands in the ring of genre i % genres at place i // genres.
    """
    users = len(lengths)
    order = np.argsort(-lengths, kind="stable")  # the walks that go on are always the first ones
    tastes, starts = tastes[order], offsets[:-1][order]
    going = np.searchsorted(-lengths[order], -np.arange(1, lengths.max() + 1), side="right")
    sizes = (items - np.arange(genres) + genres - 1) // genres
    bases = [counter.key(seed, counter.Stream.SAMPLE, part) for part in (5, 6, 7, 8)]
    item = np.empty(offsets[-1], np.int64)
    time = np.empty(offsets[-1], np.int64)
    taste = np.zeros(users, np.int64)
    place = np.zeros(users, np.int64)
    clock = _FIRST_SECOND + counter.integers(300 * 86400, bases[3], users)
    for step, active in enumerate(going):
        draws = [counter.uniform(base, active, (step + 1) * users) for base in bases]
        rows = np.arange(active)
        change = draws[0] >= 1 - _CHANGE
        taste = np.where(change, 1 - taste[:active], taste[:active])
        genre = tastes[rows, taste]
        size = sizes[genre]
        # one of the next three: 60, 25 and 15 %
        after = place[:active] + 1 + (draws[1] >= 0.6) + (draws[1] >= 0.85)
        jump = np.floor(size * (draws[1] * draws[1] * draws[1])).astype(np.int64)
        follows = (draws[0] < _FOLLOW) & (step > 0)
        place = np.where(follows, after, np.where(jump == place[:active], jump + 1, jump)) % size
        clock = clock[:active] + _gaps(draws[2], draws[3])
        item[starts[:active] + step] = place * genres + genre
        time[starts[:active] + step] = clock
    return item, time


def _gaps(which: NDArray[np.float64], drawn: NDArray[np.float64]) -> Int64:
    """Seconds between two records: minutes in one sitting, hours, days or weeks between them."""
    longest = np.array([900.0, 6 * 3600.0, 3 * 86400.0, 30 * 86400.0])
    kind = np.searchsorted(np.array([0.6, 0.8, 0.96]), which, side="right")
    return 60 + np.floor(longest[kind] * drawn).astype(np.int64)


def _names(label: Int64, genres: int) -> dict[str, str]:
    digits = len(str(len(label) // genres + 1))
    names = {
        str(name): f"{GENRES[i % genres]} record {i // genres + 1:0{max(2, digits)}d}"
        for i, name in enumerate(label.tolist())
    }
    return dict(sorted(names.items(), key=lambda pair: int(pair[0])))


def _walks_in_sessions(
    lengths: Int64, offsets: Int64, tastes: Int64, items: int, genres: int, seed: int
) -> tuple[Int64, Int64]:
    """Items and times of all listeners' events in ``sittings``, listener by listener.

    lengths, offsets: events of each; tastes: [U, 2], of which the first is theirs. Item i stands in
    the ring of genre i % genres at place i // genres.
    """
    events = int(offsets[-1])
    random = [uniform(events, part, seed) for part in range(10, 14)]
    firsts = offsets[:-1]
    user = np.repeat(np.arange(len(lengths)), lengths)
    pace = _PACES[integers(3, len(lengths), 14, seed)]
    kind = np.searchsorted(_SHARES, random[0], side="right")
    pause = np.floor(pace[user] * _PAUSES[kind] * (1 + 0.25 * random[1])).astype(np.int64)
    kind[firsts] = 2
    start = integers(300 * 86400, len(firsts), 15, seed)
    pause[firsts] = _FIRST_SECOND + start
    genre = tastes[user, 0]
    size = (items - genre + genres - 1) // genres
    steps = np.empty(events, np.int64)
    steps[1:] = (1 + kind[:-1] * (size[1:] // 3)) % size[1:]
    anywhere = np.floor(size * random[3]).astype(np.int64)
    steps = np.where(random[2] < _ANY, anywhere, steps)
    steps[firsts] = anywhere[firsts]
    place = _sums(steps, offsets) % size
    return place * genres + genre, _sums(pause, offsets)


def _sums(values: Int64, offsets: Int64) -> Int64:
    """The running sum of each row."""
    total = np.cumsum(values)
    before = total[offsets[:-1]] - values[offsets[:-1]]
    return total - np.repeat(before, np.diff(offsets))

"""A built-in sample of users, items and facts, which add information to the interactions.

``library``: readers follow authors within genres and series. A reader reads few of many books, so
two readers seldom share one. The author, series, subject and genre of a book predict who reads it.
Only the counter-based generator and exact arithmetic are used.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hasten.arrays import Int64
from hasten.data.samples.base import (
    SampleSet,
    catalog_sizes,
    first_pairs,
    integers,
    permutation,
    triple_table,
    uniform,
)

_SIZES = (600, 3200, 6_000)
_AUTHORS_EACH = 8
_GENRES = ("Crime", "Travel", "Fantasy", "History", "Poetry", "Science", "Romance", "Cooking")
_SUBJECTS = 40
_COUNTRIES = ("Iceland", "Portugal", "Kenya", "Japan", "Canada", "Chile")
#: how often a reader takes a book by a favorite author, and else one of the favorite genre
_BY_AUTHOR, _OF_GENRE = 0.75, 0.2
_FAVORITES = 3


def make_library(
    users: int | None = None, items: int | None = None, events: int | None = None, seed: int = 0
) -> SampleSet:
    """The sample ``library`` at any size: events without times, names of books, facts.

    Raises:
        DataError: sizes that do not go together.
    """
    users, items, events = catalog_sizes(users, items, events, _SIZES, 40, (4, "a quarter"))
    authors = items // _AUTHORS_EACH
    author = np.minimum(np.arange(items) // _AUTHORS_EACH, authors - 1)
    genre_of_author = integers(len(_GENRES), authors, 30, seed)
    read = _read(users, items, events, author, genre_of_author, seed)
    place = permutation(items, 31, seed)
    label = np.empty(items, np.int64)
    label[place] = np.arange(1, items + 1)
    table = pa.table({"user_id": read[0] + 1, "item_id": label[read[1]]})
    names = {
        str(label[i]): f"{_GENRES[genre_of_author[author[i]]]} book {i % _AUTHORS_EACH + 1} by "
        f"author {author[i] + 1}"
        for i in np.argsort(label).tolist()
    }
    return SampleSet(table, names, _facts(items, label, author, genre_of_author, seed))


def _read(
    users: int, items: int, events: int, author: Int64, genre_of_author: Int64, seed: int
) -> tuple[Int64, Int64]:
    """Reader and book of every event, each pair once, readers one after the other."""
    authors = len(genre_of_author)
    genre = integers(len(_GENRES), users, 32, seed)
    # favorites are of the reader's genre: the authors in the order of their genres
    by_genre = np.argsort(genre_of_author, kind="stable")
    starts = np.searchsorted(genre_of_author[by_genre], np.arange(len(_GENRES) + 1))
    sizes = np.maximum(np.diff(starts), 1)
    random = integers(1 << 30, users * _FAVORITES, 33, seed).reshape(users, _FAVORITES)
    favorite = by_genre[np.minimum(starts[genre][:, None] + random % sizes[genre][:, None],
                                    authors - 1)]  # fmt: skip
    tries = 6 * (events // users + 1)
    kind = uniform(users * tries, 34, seed)
    which = integers(1 << 30, users * tries, 35, seed)
    user = np.repeat(np.arange(users), tries)
    liked = favorite[user, which % _FAVORITES]
    first = np.searchsorted(author, liked)
    count = np.searchsorted(author, liked, "right") - first
    by_author = first + (which // _FAVORITES) % count
    of_genre_author = by_genre[np.minimum(
        starts[genre[user]] + which % sizes[genre[user]], authors - 1)]  # fmt: skip
    of_genre = np.searchsorted(author, of_genre_author) + (which // 64) % _AUTHORS_EACH
    item = np.where(
        kind < _BY_AUTHOR,
        by_author,
        np.where(kind < _BY_AUTHOR + _OF_GENRE, of_genre, which % items),
    )
    item = np.minimum(item, items - 1)
    return first_pairs(user, item, events)


def _facts(items: int, label: Int64, author: Int64, genre_of_author: Int64, seed: int) -> pa.Table:
    """Triples that an item's author, series, subject and genre are told by."""
    authors = len(genre_of_author)
    country = integers(len(_COUNTRIES), authors, 36, seed)
    subject = integers(_SUBJECTS, items, 37, seed)
    rows = []
    for i in range(items):
        book = str(label[i])
        rows.append((book, "written_by", f"author-{author[i] + 1}"))
        rows.append((book, "about", f"subject-{subject[i] + 1}"))
        if i % _AUTHORS_EACH < _AUTHORS_EACH // 2:
            rows.append((book, "in_series", f"series-{author[i] + 1}"))
    for a in range(authors):
        rows.append((f"author-{a + 1}", "writes_in", _GENRES[genre_of_author[a]]))
        rows.append((f"author-{a + 1}", "lives_in", _COUNTRIES[country[a]]))
    return triple_table(rows)

"""A built-in sample of users, items and features, which add information to the interactions.

``gallery``: visitors look at pictures. The style of a picture shows in its image features, its
subject in its text features, each with noise. A visitor likes two styles and three subjects and
mostly looks at pictures with both; two visitors seldom share a picture. Pictures without training
interactions can therefore still be recommended. Only the counter-based generator and exact
arithmetic are used.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.samples.base import SampleSet, catalog_sizes, first_pairs, integers, uniform

_SIZES = (600, 2400, 6_000)
_STYLES = ("Baroque", "Cubist", "Gothic", "Minimal", "Pop", "Romantic", "Surreal", "Woodcut")
_SUBJECTS = (
    "bridge", "cat", "city", "dancer", "desert", "forest", "fruit", "harbour", "horse", "market",
    "moon", "mountain", "river", "storm", "train", "window",
)  # fmt: skip
_WIDTHS = {"image": 48, "text": 32}
_LIKED_STYLES, _LIKED_SUBJECTS = 2, 3
#: how often a visitor looks at a picture of a liked style and subject, and else at one of either
_BOTH, _EITHER = 0.8, 0.12
_NOISE = 1.2


def make_gallery(
    users: int | None = None, items: int | None = None, events: int | None = None, seed: int = 0
) -> SampleSet:
    """The sample ``gallery`` at any size: events without times, names of pictures, features.

    Raises:
        DataError: sizes that do not go together.
    """
    users, items, events = catalog_sizes(users, items, events, _SIZES, 200, (10, "a tenth"))
    style = integers(len(_STYLES), items, 40, seed)
    subject = integers(len(_SUBJECTS), items, 41, seed)
    user, item = _looked_at(users, events, style, subject, seed)
    names = {str(i): f"{_STYLES[style[i]]} {_SUBJECTS[subject[i]]} {i}" for i in range(items)}
    features = {
        "image": _features(style, len(_STYLES), _WIDTHS["image"], 42, seed),
        "text": _features(subject, len(_SUBJECTS), _WIDTHS["text"], 44, seed),
    }
    table = pa.table({"user_id": user, "item_id": item})
    return SampleSet(table, names, features=features)


def _features(kind: Int64, kinds: int, width: int, part: int, seed: int) -> NDArray[np.float32]:
    """A center a kind, and noise an item."""
    centers = uniform(kinds * width, part, seed).reshape(kinds, width) - 0.5
    noise = uniform(len(kind) * width, part + 1, seed).reshape(len(kind), width) - 0.5
    return np.asarray(centers[kind] + _NOISE * noise, np.float32)


def _looked_at(
    users: int, events: int, style: Int64, subject: Int64, seed: int
) -> tuple[Int64, Int64]:
    """Visitor and picture of every event, each pair once, visitors one after the other."""
    items = len(style)
    styles = integers(len(_STYLES), users * _LIKED_STYLES, 46, seed).reshape(users, -1)
    subjects = integers(len(_SUBJECTS), users * _LIKED_SUBJECTS, 47, seed).reshape(users, -1)
    group = style * len(_SUBJECTS) + subject
    orders = [np.argsort(of, kind="stable") for of in (group, style, subject)]
    sizes = [np.bincount(group, minlength=len(_STYLES) * len(_SUBJECTS)),
             np.bincount(style, minlength=len(_STYLES)),
             np.bincount(subject, minlength=len(_SUBJECTS))]  # fmt: skip
    tries = 6 * (events // users + 1)
    kind = uniform(users * tries, 48, seed)
    which = integers(1 << 30, users * tries, 49, seed)
    user = np.repeat(np.arange(users), tries)
    liked_style = styles[user, which % _LIKED_STYLES]
    liked_subject = subjects[user, (which // _LIKED_STYLES) % _LIKED_SUBJECTS]
    number = which // (_LIKED_STYLES * _LIKED_SUBJECTS)
    both = _member(orders[0], sizes[0], liked_style * len(_SUBJECTS) + liked_subject, number)
    of_style = _member(orders[1], sizes[1], liked_style, number)
    of_subject = _member(orders[2], sizes[2], liked_subject, number)
    either = np.where(number % 2, of_style, of_subject)
    item = np.where(kind < _BOTH, both, np.where(kind < _BOTH + _EITHER, either, which % items))
    return first_pairs(user, item, events)


def _member(order: Int64, sizes: Int64, group: Int64, number: Int64) -> Int64:
    """The number-th member of a group, round and round; of an empty group some item."""
    begin = np.cumsum(sizes) - sizes
    place = begin[group] + number % np.maximum(sizes[group], 1)
    members: Int64 = order[np.minimum(place, len(order) - 1)]
    return members

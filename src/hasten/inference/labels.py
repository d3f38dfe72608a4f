"""Labels as Python gives them, and as indices of a vocabulary; errors for unknown labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hasten.arrays import Int64
from hasten.data.tables import Vocabulary
from hasten.errors import DataError

_SHOWN = 5
# Looking for the nearest label takes a few microseconds a label.
_SEARCHED = 200_000


def indices_of(
    vocabulary: Vocabulary,
    labels: Sequence[object],
    kind: str,
    remedy: str,
    ignored: dict[str, int] | None = None,
) -> Int64:
    """Indices of the labels, int64 [n].

    kind: "user", "item", "entity"; remedy: what to do about unknown ones. ignored: unknown labels
    are counted there by kind, and their index is -1. Otherwise raises DataError with their number,
    the first five, and the nearest known label.
    """
    index = vocabulary.index(_array(vocabulary, labels))
    unknown = [str(label) for label, i in zip(labels, index.tolist(), strict=True) if i < 0]
    if unknown and ignored is not None:
        ignored[kind] = len(unknown)
    elif unknown:
        first = ", ".join(repr(label) for label in unknown[:_SHOWN])
        more = ", ..." if len(unknown) > _SHOWN else ""
        raise DataError(
            f"{len(unknown)} of {len(labels)} {_plural(kind)} are unknown to the run: {first}{more}"
            f"{_nearest(vocabulary, unknown[0])}; {remedy}"
        )
    return index


def as_list(given: object) -> list[Any]:
    """A list of the labels; a text or a number is one label."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def by_user(given: object) -> dict[Any, list[Any]]:
    """Lists by user. A list of labels is that of the user "new"; lists of a list count from 0."""
    if isinstance(given, Mapping):
        return {user: as_list(labels) for user, labels in given.items()}
    labels = as_list(given)
    if any(isinstance(label, Iterable) and not isinstance(label, str | bytes) for label in labels):
        return dict(enumerate(map(as_list, labels)))
    return {"new": labels}


def _plural(kind: str) -> str:
    return kind.removesuffix("y") + "ies" if kind.endswith("y") else kind + "s"


def _array(vocabulary: Vocabulary, labels: Sequence[object]) -> pa.Array:
    """The labels in the vocabulary's type, null where they cannot be of it."""
    if vocabulary.numeric:
        return pa.array([_whole(label) for label in labels], vocabulary.labels.type)
    return pa.array([str(label) for label in labels], vocabulary.labels.type)


def _whole(label: object) -> int | None:
    """The label as a whole number of 64 bits; a float above 2^53 may have lost digits: None."""
    text = str(label).strip()
    if not re.fullmatch(r"-?[0-9]{1,19}(\.0*)?", text):
        return None
    number = int(text.partition(".")[0])
    exact = not isinstance(label, float) or abs(label) <= 2**53
    return number if exact and -(2**63) <= number < 2**63 else None


def _nearest(vocabulary: Vocabulary, label: str) -> str:
    if vocabulary.numeric:
        ends = pc.min_max(vocabulary.labels).as_py()
        return f" (known ones are whole numbers from {ends['min']} to {ends['max']})"
    known = vocabulary.labels[:_SEARCHED].to_pylist()
    near = get_close_matches(label, known, n=1, cutoff=0.6)
    shown = f"nearest to {label!r} is {near[0]!r}" if near else f"known ones are like {known[0]!r}"
    return f" ({shown})"

"""Map labels to the indices of a vocabulary, with helpful errors for unknown labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from hasten.arrays import Int64
from hasten.data.tables import Vocabulary
from hasten.errors import DataError

_SHOWN = 5
# Looking for the nearest label takes a few microseconds a label.
_SEARCHED = 200_000


def indices_of(vocabulary: Vocabulary, labels: Sequence[object], kind: str, remedy: str) -> Int64:
    """Indices of the labels, int64 [n].

    kind: "user", "item", "entity"; remedy: what to do about unknown ones. Raises DataError with
    their number, the first five, and the nearest known label.
    """
    index = vocabulary.index(_array(vocabulary, labels))
    unknown = [str(label) for label, i in zip(labels, index.tolist(), strict=True) if i < 0]
    if unknown:
        first = ", ".join(repr(label) for label in unknown[:_SHOWN])
        more = ", ..." if len(unknown) > _SHOWN else ""
        raise DataError(
            f"{len(unknown)} of {len(labels)} {_plural(kind)} are unknown to the run: {first}{more}"
            f"{_nearest(vocabulary, unknown[0])}; {remedy}"
        )
    return index


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

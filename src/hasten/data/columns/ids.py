"""Turn columns of ids into one sorted vocabulary; decide whether ids are numbers or labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from hasten.data.columns.checks import (
    MISSING_WORDS,
    NUMBER_PATTERN,
    WHOLE_PATTERN,
    IdRule,
    Rows,
    Rules,
    broken_rules,
)

Mode = Literal["auto", "numbers", "labels"]
_ZEROS = r"^0[0-9]+$"
#: if more than this share of the ids are numbers, the others are taken as damaged
_NEARLY_ALL = 0.99
_REMEDY = "if they are labels, not numbers: --set data.ids=labels"


@dataclass(frozen=True, eq=False)
class IdColumn:
    """A dictionary-encoded column of ids.

    codes: int32 [n], positions in values; values: string or int64 Arrow array [distinct].
    """

    codes: NDArray[np.int32]
    values: pa.Array

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> IdColumn:
        """Encode an Arrow column; one that is encoded already is not copied to plain text."""
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        unified = column.unify_dictionaries()
        codes = np.concatenate([np.asarray(chunk.indices) for chunk in unified.chunks])
        return cls(codes.astype(np.int32, copy=False), unified.chunk(0).dictionary)

    def texts(self) -> list[str]:
        """The distinct values as Python strings."""
        texts: list[str] = self.values.cast(pa.string()).to_pylist()
        return texts


@dataclass(frozen=True, eq=False)
class Ids:
    """One vocabulary of ids over several files.

    labels: int64 or string Arrow array, sorted, distinct; codes: int32 [n] of each file.
    """

    labels: pa.Array
    codes: list[NDArray[np.int32]]
    notes: tuple[str, ...] = ()


class BadIds(ValueError):
    """Ids that break a rule. cause: the reason in words."""

    def __init__(self, rule: IdRule, cause: str) -> None:
        super().__init__(cause)
        self.rule, self.cause = rule, cause


def vocabulary(kind: str, roles: Sequence[str], files: Sequence[Any], mode: Mode = "auto") -> Ids:
    """The ids of some roles over all files as one sorted vocabulary (see :func:`unite`).

    kind: what the ids name, for messages; files: their columns (``readers.interface.Columns``).
    """
    columns = [file.ids[role] for file in files for role in roles]
    return checked(kind, roles, columns, [file.rows for file in files], mode)


def checked(
    kind: str, roles: Sequence[str], columns: Sequence[IdColumn], rows: list[Rows], mode: Mode
) -> Ids:
    """:func:`unite`, whose errors name the lines of the files. Raises DataError."""
    header = {
        role: frozenset[str]().union(*(source.rules.header.get(role, ()) for source in rows))
        for role in roles
    }
    try:
        return unite(kind, columns, mode, frozenset[str]().union(*header.values()))
    except BadIds as error:
        rules = Rules(dict.fromkeys(roles, error.rule), header=header, missing=mode == "labels")
        remedy = _REMEDY if error.rule == "numbers" or "missing" in error.cause else ""
        raise broken_rules(rows, rules, error.cause, remedy) from None


def unite(role: str, columns: Sequence[IdColumn], mode: Mode, header: frozenset[str]) -> Ids:
    """The ids of all files as one sorted vocabulary. Raises BadIds.

    auto: ids are numbers if all are whole numbers of 64 bits without leading zeros, labels
    otherwise; fractions, and ids that are nearly all numbers, are refused.
    Numbers sort ascending, labels by code point.
    """
    each = {id(c.values): c.values for c in columns}  # columns may have the same values
    values = [v.cast(pa.string()) if mode == "labels" else v for v in each.values()]
    if any(not types.is_integer(v.type) for v in values):
        values = [v.cast(pa.string()) for v in values]
    united = pa.concat_arrays(values)
    notes: tuple[str, ...] = ()
    if types.is_string(united.type):
        united, notes = _judge(role, pc.utf8_trim_whitespace(united), mode, header)
    labels = pc.unique(united)
    labels = labels.take(pc.array_sort_indices(labels))
    order = np.asarray(pc.index_in(united, value_set=labels), np.int32)
    parts = np.split(order, np.cumsum([len(v) for v in values])[:-1])
    part_of = dict(zip(each, parts, strict=True))
    codes = [part_of[id(column.values)][column.codes] for column in columns]
    return Ids(labels, codes, notes)


def _judge(
    role: str, texts: pa.Array, mode: Mode, header: frozenset[str]
) -> tuple[pa.Array, tuple[str, ...]]:
    """The texts as whole numbers or as labels, and notes."""
    if mode != "labels":
        numbers = _canonical(texts)
        if numbers is not None:
            return numbers, ()
        numeric = _count(pc.match_substring_regex(texts, NUMBER_PATTERN))
        zeros = _count(pc.match_substring_regex(texts, _ZEROS))
        if mode == "numbers" or (numeric == len(texts) and not zeros):
            converted = _whole(role, texts)
            if converted is not None:
                return converted
            if mode == "numbers":
                raise BadIds("numbers", f"{role} ids that do not fit into 64 bits")
        if _NEARLY_ALL * len(texts) < numeric < len(texts):
            strange = len(texts) - numeric
            raise BadIds("numbers", f"{strange} of {len(texts)} {role} ids are no numbers")
    _check_labels(role, texts, mode, header)
    if mode == "labels" or not numeric:
        return texts, ()
    if numeric == len(texts):
        cause = f"{zeros} {role} ids are written with leading zeros"
        note = f"{cause if zeros else f'{role} ids of more than 64 bits'}: all are kept as text"
    else:
        mask = pc.match_substring_regex(texts, NUMBER_PATTERN)
        other = texts.filter(pc.invert(mask))[0].as_py()
        note = (
            f"{numeric} of {len(texts)} {role} ids are written as numbers and "
            f"{len(texts) - numeric} are not (e.g. {other!r}): all are kept as text"
        )
    return texts, (note + " (--set data.ids=labels or numbers says so)",)


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _canonical(texts: pa.Array) -> pa.Array | None:
    """The texts as int64 if each is the decimal form of an integer, else None."""
    try:
        numbers = texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    return numbers if numbers.cast(pa.string()).equals(texts) else None


def _whole(role: str, texts: pa.Array) -> tuple[pa.Array, tuple[str, ...]] | None:
    """Texts such as 12, 12.0 or 012 as int64, None if they do not fit; 7 and 07 are refused."""
    if not pc.all(pc.match_substring_regex(texts, WHOLE_PATTERN)).as_py():
        raise BadIds("numbers", f"{role} ids that are not whole numbers")
    digits = pc.replace_substring_regex(texts, r"\..*$", "")
    try:
        numbers = digits.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if len(pc.unique(numbers)) < len(pc.unique(texts)):
        raise BadIds("numbers", f"{role} ids: {_two_spellings(texts, numbers)} are one number")
    unusual = texts.filter(pc.match_substring_regex(texts, r"\.|^0[0-9]"))[0].as_py()
    return numbers, (f"{role} ids such as {unusual!r} are read as whole numbers",)


def _two_spellings(texts: pa.Array, numbers: pa.Array) -> str:
    seen: dict[int, str] = {}
    for text, number in zip(texts.to_pylist(), numbers.to_pylist(), strict=True):
        if seen.setdefault(number, text) != text:
            return f"{seen[number]!r} and {text!r}"
    raise AssertionError("no number is written in two ways")


def _check_labels(role: str, texts: pa.Array, mode: Mode, header: frozenset[str]) -> None:
    """Raise BadIds for texts that cannot be labels."""
    refused = pa.array(["", *header], pa.string())
    if pc.any(pc.is_in(texts, value_set=refused)).as_py():
        raise BadIds("labels", f"empty {role} ids or a repeated header")
    if not pc.all(pc.utf8_is_printable(texts)).as_py():
        raise BadIds("labels", f"{role} ids with characters that cannot be printed")
    words = pa.array(MISSING_WORDS, pa.string())
    if mode == "auto" and pc.any(pc.is_in(pc.utf8_lower(texts), value_set=words)).as_py():
        raise BadIds("labels", f"{role} ids that look like missing values")

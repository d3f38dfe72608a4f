"""Vocabularies of entities and relations, from the triples or dictionaries; names of relations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns import ids, text
from hasten.data.columns.checks import printable
from hasten.data.readers import cells
from hasten.data.readers.interface import Columns
from hasten.data.readers.names import read_names
from hasten.data.tables import Triples, Vocabulary
from hasten.errors import DataError

_SEPARATORS = ("\t", ",", ";", "|", cells.BLANKS)
_EXPECTED = "expected: label<separator>number, a line each, or a JSON object of them"


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Labels in the order of their numbers. labels, numbers: texts of the same length."""

    path: Path
    labels: list[str]
    numbers: list[str]

    def apply(self, known: pa.Array) -> tuple[Vocabulary, Int64, NDArray[np.bool_]]:
        """The vocabulary of the dictionary, extended by the ids that it lacks.

        The triples may hold the labels or the numbers; with numbers, the labels are the names.
        Returns the vocabulary, int64 [known] the index of each id in it, and bool [known], which
        ids the dictionary lacks (they are at the end of the vocabulary).
        """
        texts = known.cast(pa.string())
        by_label = Vocabulary(pa.array(self.labels, pa.string())).index(texts)
        by_number = Vocabulary(pa.array(self.numbers, pa.string())).index(texts)
        numbered = int((by_number >= 0).sum()) > int((by_label >= 0).sum())
        index = by_number if numbered else by_label
        if len(known) and not (index >= 0).any():
            raise DataError(
                f"{self.path}: none of its {len(self.labels):,} entries is in the data (it holds "
                f"{self.labels[0]!r}, ..., the data {texts[0].as_py()!r}, ...)"
            )
        unlisted = index < 0
        extra = texts.filter(pa.array(unlisted))
        index[unlisted] = len(self.labels) + np.arange(len(extra))
        labels = pa.concat_arrays([pa.array(self.numbers if numbered else self.labels), extra])
        if numbered and pa.types.is_integer(known.type):
            labels = labels.cast(known.type)
        names = None
        if numbered:
            names = pa.concat_arrays([pa.array(self.labels), pa.nulls(len(extra), pa.string())])
        return Vocabulary(labels, names), index, unlisted


def read_dictionary(path: Path) -> Dictionary:
    """Read a dictionary: lines ``label<separator>number`` (in either order), or JSON.

    Raises:
        DataError: with file, line and text; a label or a number that occurs twice, a label that
            cannot be printed.
    """
    lines = text.checked_lines(path)
    rows = _json_rows(path) if path.suffix.lower() == ".json" else _rows(path, lines)
    if not rows:
        raise DataError(f"{path}: 0 rows, the file is empty")
    columns = [[row[1][i] for row in rows] for i in (0, 1)]
    whole = [all(cell.isdecimal() for cell in column) for column in columns]
    if not any(whole):
        where, row = next((w, r) for w, r in rows if not any(cell.isdecimal() for cell in r))
        raise DataError(f"{path}: {where}: no number: {' '.join(row)!r}\n{_EXPECTED}")
    labels, numbers = columns if whole[1] else columns[::-1]
    for what, column in (("label", labels), ("number", numbers)):
        seen: dict[str, str] = {}
        for (where, _), cell in zip(rows, column, strict=True):
            if cell in seen:
                raise DataError(f"{path}: {where}: the {what} {cell!r} again, as in {seen[cell]}")
            seen[cell] = where
    for (where, _), label in zip(rows, labels, strict=True):
        if not label.isprintable():
            raise DataError(
                f"{path}: {where}: the label {printable(label)} holds characters that cannot be "
                "printed: take them out, here and in the triples"
            )
    order = sorted(range(len(rows)), key=lambda i: int(numbers[i]))
    return Dictionary(path, [labels[i] for i in order], [str(int(numbers[i])) for i in order])


def _json_rows(path: Path) -> list[tuple[str, list[str]]]:
    rows = []
    for place, (key, value) in enumerate(_json_object(path).items(), 1):
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise DataError(f"{path}: entry {place}: {value!r} is no number\n{_EXPECTED}")
        rows.append((f"entry {place}", [str(key).strip(), str(value).strip()]))
    return rows


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: a JSON object is expected, not a {type(content).__name__}")
    return content


def _rows(path: Path, lines: list[tuple[int, str]]) -> list[tuple[str, list[str]]]:
    if lines[0][1].strip().isdecimal():  # a count in the first line, as OpenKE writes it
        lines = lines[1:]
    rows = []
    separator: str | None = None
    for number, line in lines:
        if separator is None:
            separator = next(
                (s for s in _SEPARATORS if len(cells.split_or_empty(line, s)) == 2), None
            )
        row = [] if separator is None else cells.stripped(line, separator)
        if len(row) != 2 or not all(row):
            raise DataError(f"{path}: line {number}: no label and number: {line!r}\n{_EXPECTED}")
        rows.append((f"line {number}", row))
    if rows and not any(cell.isdecimal() for cell in rows[0][1]) and len(rows) > 1:
        rows = rows[1:]  # a header
    return rows


def read_relation_names(path: Path, known: set[str]) -> dict[str, str]:
    """Relation -> name: lines as in other files of names, or a JSON object in either direction.

    In ``edge_map.json`` the keys are names and the values are relations. The side with more
    relations of the data is taken as the relations.
    """
    if path.suffix.lower() != ".json":
        return read_names(path)
    content = _json_object(path)
    pairs = [(str(k), v if isinstance(v, str) else json.dumps(v)) for k, v in content.items()]
    forward = sum(key in known for key, _ in pairs)
    backward = sum(value in known for _, value in pairs)
    if not forward and not backward:
        raise DataError(f"{path}: none of its {len(pairs)} entries is a relation of the data")
    if forward >= backward:
        return dict(pairs)
    return {value: key for key, value in pairs}


def index_triples(
    sources: list[Columns],
    mode: ids.Mode,
    dictionaries: tuple[Dictionary | None, Dictionary | None],
    notes: list[str],
) -> tuple[Triples, Vocabulary, Vocabulary, NDArray[np.bool_]]:
    """The triples of all files as indices into vocabularies; dictionaries fix their order.

    dictionaries: of entities and of relations. Returns the triples, the entities, the relations,
    and bool [n], which triples have an id that its dictionary lacks. Notes go to ``notes``.
    """
    labels = ids.vocabulary("entity", ("head", "tail"), sources, mode)
    kinds = ids.vocabulary("relation", ("relation",), sources, mode)
    notes += [*labels.notes, *kinds.notes]
    head, tail, relation = (
        np.concatenate(codes) for codes in (labels.codes[::2], labels.codes[1::2], kinds.codes)
    )
    entities, entity, foreign = _vocabulary(labels.labels, dictionaries[0])
    relations, kind, foreign_kind = _vocabulary(kinds.labels, dictionaries[1])
    triples = Triples(entity[head], kind[relation], entity[tail])
    outside = foreign[head] | foreign[tail] | foreign_kind[relation]
    return triples, entities, relations, outside


def _vocabulary(
    labels: pa.Array, dictionary: Dictionary | None
) -> tuple[Vocabulary, Int64, NDArray[np.bool_]]:
    """The vocabulary, the index of each label in it, and which labels the dictionary lacks."""
    if dictionary is None:
        return Vocabulary(labels), np.arange(len(labels)), np.zeros(len(labels), bool)
    return dictionary.apply(labels)

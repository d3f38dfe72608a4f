"""Triples of one or more files -> vocabularies, policies, split, counts: a KnowledgeGraph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import DataOptions, TripleOptions
from hasten.data.columns import ids
from hasten.data.columns.checks import Problem, Rules, counted, refusal
from hasten.data.graph import statistics as graph_counts
from hasten.data.graph.dictionaries import Dictionary
from hasten.data.graph.splits import given_parts, random_parts
from hasten.data.graph.typed_links import link_parts, stored_links
from hasten.data.readers.names import with_names
from hasten.data.readers.triples import TripleColumns
from hasten.data.tables import PART_NAMES, TRAIN, KnowledgeGraph, Source, Triples, Vocabulary
from hasten.errors import DataError

_REMEDY = (
    "choose what becomes of them: --set data.unknown=keep (scored untrained, as most published "
    "figures are), rank-last (counted as misses) or drop"
)
_SHOWN_ROWS = 5


@dataclass(eq=False)
class GraphRead:
    """What was read, in order (train, valid, test).

    triples: each file's, with its part (None: not said). names, relation_names: label -> name.
    typed: entities are ``type::id``.
    """

    name: str
    path: str | None
    format: str
    triples: list[tuple[TripleColumns, int | None]]
    entities: Dictionary | None = None
    relations: Dictionary | None = None
    names: dict[str, str] = field(default_factory=dict)
    relation_names: dict[str, str] = field(default_factory=dict)
    files: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    typed: bool = False


@dataclass(eq=False)
class _Rows:
    """Triples with what their refusals need. place: int64 [n] row within all files' rows."""

    triples: Triples
    part: NDArray[np.int8]
    place: Int64

    def take(self, rows: NDArray[np.bool_] | Int64) -> _Rows:
        return _Rows(self.triples.take(rows), self.part[rows], self.place[rows])


def assemble_graph(read: GraphRead, options: TripleOptions, seed: int) -> KnowledgeGraph:
    """The knowledge graph of what was read.

    Raises:
        DataError: ids, unknown entities, duplicates or the split do not work out.
    """
    try:
        return _assemble(read, options, seed)
    except DataError as error:
        where = read.path or read.name
        raise error if where in str(error) else DataError(f"{where}: {error}") from error


def _assemble(read: GraphRead, options: TripleOptions, seed: int) -> KnowledgeGraph:
    sources = [columns for columns, _ in read.triples]
    counts: dict[str, Any] = {"read": sum(map(len, sources))}
    files = (*read.files, *chain.from_iterable(columns.files for columns in sources))
    said = [*read.notes, *chain.from_iterable(columns.notes for columns in sources)]
    entities = unite_roles("entity", ("head", "tail"), sources, options)
    relations = unite_roles("relation", ("relation",), sources, options)
    said += [*entities.notes, *relations.notes]
    codes = [np.concatenate(entities.codes[i::2]) for i in (0, 1)]
    triples = Triples(*(_wide(c) for c in (codes[0], np.concatenate(relations.codes), codes[1])))
    known, triples, outside = _dictionaries(read, entities, relations, triples)
    if read.typed:
        links = stored_links(triples, known[0], known[1], options.symmetric, said)
        triples, known, place = links.triples, (known[0], links.relations), links.place
        outside = outside[place]
    else:
        place = np.arange(len(triples))
    parts, split = _parts(read, triples, place, options, seed)
    rows = _Rows(triples, parts, place)
    rows = _inside(read, rows, outside, options, counts, said)
    rows = _distinct(rows, options, counts, said)
    rows, rank_last = _unknown(read, rows, known, options, counts, said)
    order = np.argsort(rows.part, kind="stable")
    rows, rank_last = rows.take(order), rank_last[order]
    triples, vocabularies = rows.triples, known
    if read.entities is None or options.unknown == "drop":
        triples, vocabularies = _compact(triples, known, read)
    named = _named(read, vocabularies, said)
    source = Source(read.format, read.path, files)
    graph = KnowledgeGraph(
        read.name, *named, triples, rows.part, split, source, rank_last, read.typed
    )
    counts |= graph_counts.count(graph, said)
    return replace(graph, source=replace(source, counts=counts, notes=tuple(dict.fromkeys(said))))


def _wide(codes: NDArray[np.int32]) -> Int64:
    return codes.astype(np.int64)


def unite_roles(
    kind: str, roles: tuple[str, ...], sources: list[TripleColumns], options: DataOptions
) -> ids.Ids:
    """One vocabulary over the columns of these roles, or the error that names the bad rows."""
    columns = [getattr(source, role) for source in sources for role in roles]
    header = frozenset().union(*(source.header for source in sources))
    united = ids.unite(kind, columns, options.ids, header)
    if isinstance(united, ids.Ids):
        return united
    said: dict[str, Any] = dict.fromkeys(roles, united.rule)
    rules = Rules(**said, header=header, missing=options.ids == "labels")
    problems = chain.from_iterable(source.problems(rules) for source in sources)
    remedy = ids.REMEDY if united.rule == "numbers" or "missing" in united.cause else ""
    names = ", ".join(source.source for source in sources)
    raise refusal(names, problems, sources[0].expected, remedy, united.cause)


def _dictionaries(
    read: GraphRead, entities: ids.Ids, relations: ids.Ids, triples: Triples
) -> tuple[tuple[Vocabulary, Vocabulary], Triples, NDArray[np.bool_]]:
    """The vocabularies with the dictionaries' entries, and which triples hold strangers."""
    outside = np.zeros(len(triples), bool)
    vocabularies = []
    columns = {"entity": [triples.head, triples.tail], "relation": [triples.relation]}
    for kind, found, dictionary in (
        ("entity", entities, read.entities),
        ("relation", relations, read.relations),
    ):
        if dictionary is None:
            vocabularies.append(Vocabulary(found.labels))
            continue
        vocabulary, places, strangers = dictionary.apply(found.labels)
        stranger = np.zeros(len(found.labels), bool)
        stranger[strangers] = True
        for column in columns[kind]:
            outside |= stranger[column]
        columns[kind] = [places[column] for column in columns[kind]]
        vocabularies.append(vocabulary)
    head, tail = columns["entity"]
    return (vocabularies[0], vocabularies[1]), Triples(head, columns["relation"][0], tail), outside


def _parts(
    read: GraphRead, triples: Triples, place: Int64, options: TripleOptions, seed: int
) -> tuple[NDArray[np.int8], str]:
    found = []
    for columns, part in read.triples:
        if part is not None:
            found.append(np.full(len(columns), part, np.int8))
        elif columns.part is not None:
            found.append(columns.part)
    chosen = options.split
    if chosen == "auto":
        chosen = "given" if found else "ratio"
    if chosen == "given":
        return given_parts(np.concatenate(found)[place] if found else None)
    if read.typed:
        return link_parts(triples, options.ratios, int(triples.relation.max()) + 1, seed)
    return random_parts(triples, options.ratios, seed)


def _inside(
    read: GraphRead,
    rows: _Rows,
    outside: NDArray[np.bool_],
    options: TripleOptions,
    counts: dict[str, Any],
    said: list[str],
) -> _Rows:
    """The triples under the policy on ids that the dictionaries lack."""
    counts["outside_dictionary"] = int(outside.sum())
    if not outside.any():
        return rows
    what = counted(int(outside.sum()), "triple") + " with an id that the dictionary lacks"
    if options.unknown == "error":
        reason = "an entity or a relation that the dictionary lacks"
        raise _refused(read, rows.place[outside], reason)
    if options.unknown == "drop":
        said.append(f"{what} left out (data.unknown=drop)")
        return rows.take(~outside)
    said.append(f"{what}: the ids were added (data.unknown={options.unknown})")
    return rows


def _distinct(
    rows: _Rows, options: TripleOptions, counts: dict[str, Any], said: list[str]
) -> _Rows:
    """The triples under the policy on duplicates: the same triple again in the same part."""
    triples = rows.triples
    order = np.lexsort((rows.place, triples.tail, triples.relation, triples.head, rows.part))
    same = np.ones(max(0, len(order) - 1), bool)
    for column in (triples.tail, triples.relation, triples.head, rows.part):
        ordered = column[order]
        same &= ordered[1:] == ordered[:-1]
    again = np.zeros(len(order), bool)
    again[order[1:][same]] = True
    count = int(again.sum())
    counts["duplicates"] = count
    if not count:
        return rows
    if options.duplicates == "error":
        raise DataError(f"{counted(count, 'duplicate triple')}; --set data.duplicates=drop or keep")
    did = "left out" if options.duplicates == "drop" else "kept"
    said.append(f"{counted(count, 'duplicate triple')} {did} (data.duplicates)")
    return rows.take(~again) if options.duplicates == "drop" else rows


def _unknown(
    read: GraphRead,
    rows: _Rows,
    known: tuple[Vocabulary, Vocabulary],
    options: TripleOptions,
    counts: dict[str, Any],
    said: list[str],
) -> tuple[_Rows, NDArray[np.bool_]]:
    """The triples under the policy on what stands in no training triple, and the misses."""
    triples, train = rows.triples, rows.part == TRAIN
    entity, relation = (np.zeros(len(vocabulary), bool) for vocabulary in known)
    entity[triples.head[train]] = entity[triples.tail[train]] = True
    relation[triples.relation[train]] = True
    unknown = ~(entity[triples.head] & entity[triples.tail] & relation[triples.relation])
    total = int(unknown.sum())
    per_part = {
        name: int(np.sum(unknown & (rows.part == p))) for p, name in enumerate(PART_NAMES) if p
    }
    counts |= {f"unknown_in_{name}": count for name, count in per_part.items()}
    if not total:
        return rows, unknown
    if options.unknown == "error":
        raise _refused(
            read, rows.place[unknown], "an entity or the relation stands in no training triple"
        )
    where = ", ".join(f"{count:,} of {name}" for name, count in per_part.items() if count)
    what = f"{counted(total, 'triple')} with an entity or a relation of no training triple"
    did = {
        "drop": "left out",
        "rank-last": "counted as misses",
        "keep": "scored untrained",
    }[options.unknown]
    said.append(f"{what} ({where}): {did} (data.unknown={options.unknown})")
    if options.unknown == "drop":
        rows = rows.take(~unknown)
        return rows, np.zeros(len(rows.place), bool)
    return rows, unknown if options.unknown == "rank-last" else np.zeros(len(unknown), bool)


def _refused(read: GraphRead, places: Int64, reason: str) -> DataError:
    """The error for triples by their place: files and lines of the first, and their number."""
    sources = [columns for columns, _ in read.triples]
    starts = np.cumsum([0, *map(len, sources)])
    places = np.sort(places)

    def problems() -> Iterator[Problem]:
        shown = 0
        for source, start, stop in zip(sources, starts, starts[1:], strict=False):
            mine = places[(places >= start) & (places < stop)] - start
            first = mine[: max(0, _SHOWN_ROWS - shown)]
            shown += len(first)
            for where, line in source.places(first) if len(first) else ():
                yield Problem(
                    f"{source.source}, {where}" if len(sources) > 1 else where, line, reason
                )
            for _ in range(len(mine) - len(first)):
                yield Problem("line", "", reason)

    names = ", ".join(source.source for source in sources)
    return refusal(names, problems(), sources[0].expected, _REMEDY, reason)


def _compact(
    triples: Triples, known: tuple[Vocabulary, Vocabulary], read: GraphRead
) -> tuple[Triples, tuple[Vocabulary, Vocabulary]]:
    """The vocabularies without entries that no triple holds; those of a dictionary stay."""
    vocabularies = []
    columns = [[triples.head, triples.tail], [triples.relation]]
    dictionaries = (read.entities, read.relations)
    for number, (vocabulary, dictionary) in enumerate(zip(known, dictionaries, strict=True)):
        used = np.zeros(len(vocabulary), bool)
        for column in columns[number]:
            used[column] = True
        if dictionary is not None:
            used[: len(dictionary.labels)] = True
        if used.all():
            vocabularies.append(vocabulary)
            continue
        new = np.cumsum(used) - 1
        columns[number] = [new[column] for column in columns[number]]
        kept = pa.array(np.flatnonzero(used))
        names = None if vocabulary.names is None else vocabulary.names.take(kept)
        vocabularies.append(Vocabulary(vocabulary.labels.take(kept), names))
    (head, tail), (relation,) = columns
    return Triples(head, relation, tail), (vocabularies[0], vocabularies[1])


def _named(
    read: GraphRead, vocabularies: tuple[Vocabulary, Vocabulary], said: list[str]
) -> tuple[Vocabulary, Vocabulary]:
    entities, relations = vocabularies
    if read.names:
        entities, more = with_names(entities, read.names, "entities")
        said += more
    if read.relation_names:
        relations, more = with_names(relations, read.relation_names, "relations")
        said += more
    return entities, relations

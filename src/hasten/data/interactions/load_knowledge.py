"""Options -> a Dataset for recommenders of users and items, with the facts about its items."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hasten.arrays import Int64
from hasten.config import DataOptions, InteractionOptions, KnowledgeOptions
from hasten.data.columns import text
from hasten.data.columns.checks import counted, printable
from hasten.data.columns.text import file_digest
from hasten.data.graph.vocabularies import unite_roles
from hasten.data.interactions.clean import distinct
from hasten.data.interactions.id_lists import NumberedList, read_links, read_list
from hasten.data.interactions.knowledge_files import FactsPlace, locate_facts, unpacked
from hasten.data.interactions.load import load_dataset, load_table
from hasten.data.readers.columns import TRIPLE_ROLES, find_roles
from hasten.data.readers.interface import TripleColumns
from hasten.data.readers.memory import read_triple_table
from hasten.data.readers.recbole import atomic_header
from hasten.data.readers.triples import read_triples
from hasten.data.sources import catalogue
from hasten.data.sources.fetched import fetched_options
from hasten.data.sources.files import locate
from hasten.data.sources.published import RemoteFolder
from hasten.data.tables import Dataset, Facts, Triples, Vocabulary
from hasten.errors import DataError

_SHOWN = 5


def load_recommendation(options: InteractionOptions, seed: int, *, facts: bool) -> Dataset:
    """The events that the options name, split at random where they name no parts.

    facts: with the knowledge graph beside them; without it, the same users and items.

    Raises:
        DataError: what is wrong, with file, line and text.
    """
    if options.path is not None and not Path(options.path).exists():
        entry = catalogue.find(options.path)
        if isinstance(entry, RemoteFolder):
            local = load_recommendation(fetched_options(entry, options), seed, facts=facts)
            return replace(local, name=entry.name)
        dataset = load_dataset(options, seed, "ratio")
        if isinstance(entry, catalogue.Sample) and entry.kind == "facts":
            made = entry.make()
            assert made.facts is not None
            columns = read_triple_table(made.facts, DataOptions(), f"{entry.name} facts")
            return _with_facts(dataset, columns, None, {}) if facts else dataset
        return _required(dataset, facts)
    place = _located(options)
    if place.kgat and options.format is None:
        options = options.model_copy(update={"format": "sequences"})
    dataset = load_dataset(options, seed, "ratio")
    lists = {role: read_list(path) for role, path in place.lists.items()}
    dataset = _listed(dataset, lists, options)
    if not facts:
        return dataset
    if place.kg is None:
        return _required(dataset, facts)
    return _read(dataset, place, lists, options)


def load_recommendation_table(
    table: Any, options: InteractionOptions, seed: int, *, facts: bool
) -> Dataset:
    """Events in memory, with the facts of the files that ``data.kg`` and ``data.links`` name."""
    dataset = load_table(table, options, seed, otherwise="ratio")
    place = _located(options)
    if not facts:
        return dataset
    return _required(dataset, facts) if place.kg is None else _read(dataset, place, {}, options)


def _located(options: InteractionOptions) -> FactsPlace:
    if isinstance(options, KnowledgeOptions):
        return locate_facts(options.path, options.kg, options.links)
    return locate_facts(options.path)


def _required(dataset: Dataset, facts: bool) -> Dataset:
    if facts:
        raise DataError(
            f"{dataset.source.path or dataset.name}: events, but no facts about the items: "
            "kg_final.txt in the folder, X.kg beside X.inter, or --set data.kg=FILE"
        )
    return dataset


def _read(
    dataset: Dataset, place: FactsPlace, lists: dict[str, NumberedList], options: InteractionOptions
) -> Dataset:
    assert place.kg is not None
    with unpacked(place.kg) as path:
        columns = read_triples(path, DataOptions(ids=options.ids, columns=typed_columns(path)))
    links = None if place.links is None else read_links(place.links)
    files = [file_digest(p) for p in (place.kg, place.links) if p is not None]
    source = dataset.source
    said = [note for note in source.notes if not note.startswith("files not used")]
    said.append(f"facts about the items from {place.kg.name}")
    source = replace(source, files=(*source.files, *files), notes=tuple(said))
    return _with_facts(replace(dataset, source=source), columns, links, lists)


def typed_columns(path: Path) -> dict[str, str]:
    """The columns of an atomic file by their whole headers, e.g. head_id:token; {} for others."""
    lines = text.sample(path).texts
    typed = atomic_header(lines[0], "\t") if lines else None
    if typed is None:
        return {}
    roles = find_roles(str(path), [name for name, _ in typed], {}, TRIPLE_ROLES)
    if isinstance(roles, str):
        raise DataError(f"{path}: {roles}")
    cells = [cell.strip() for cell in lines[0].split("\t")]
    return {role: cells[place] for role, place in roles.items()}


def _listed(
    dataset: Dataset, lists: dict[str, NumberedList], options: InteractionOptions
) -> Dataset:
    """The dataset with the names of the lists, and all items of the list of items."""
    items, users = dataset.items, dataset.users
    said = list(dataset.source.notes)
    if (listed := lists.get("item")) is not None:
        found = listed.place(items.labels)
        _refuse_beyond(found, items.labels, listed, options, 1)
        missing = np.setdiff1d(np.arange(len(listed)), found)
        if len(missing):
            more = listed.numbers.take(pa.array(missing)).cast(items.labels.type)
            items = Vocabulary(pa.concat_arrays([items.labels, more]))
            said.append(f"{counted(len(missing), 'item')} of the list without events")
        places = pa.array(np.concatenate([found, missing]))
        items = Vocabulary(items.labels, listed.names.take(places))
    if (listed := lists.get("user")) is not None:
        found = listed.place(users.labels)
        _refuse_beyond(found, users.labels, listed, options, 0)
        users = Vocabulary(users.labels, listed.names.take(pa.array(found)))
    files = tuple(file_digest(listed.path) for listed in lists.values())
    source = dataset.source
    counts = {**source.counts, "items": len(items)}
    source = replace(source, counts=counts, notes=tuple(said), files=(*source.files, *files))
    return replace(dataset, items=items, users=users, source=source)


def _refuse_beyond(
    found: Int64, labels: pa.Array, listed: NumberedList, options: InteractionOptions, cell: int
) -> None:
    """Refuse ids that their list lacks, with the first line that holds one."""
    strangers = set(labels.take(pa.array(np.flatnonzero(found < 0))).cast(pa.string()).to_pylist())
    if not strangers:
        return
    what = ("user", "item")[cell]
    for path, _ in locate(options).parts:
        for number, line in text.lines_of(path):
            row = line.split()
            held = strangers & set(row[1:] if cell else row[:1])
            if held:
                raise DataError(
                    f"{path}: line {number}: {what} {min(held)} is not in {listed.path.name}, "
                    f"which has {len(listed):,} entries ({counted(len(strangers), what)} in all): "
                    f"{printable(line)}"
                )
    raise DataError(f"{counted(len(strangers), what)} not in {listed.path}")


def _with_facts(
    dataset: Dataset,
    columns: TripleColumns,
    links: dict[str, str] | None,
    lists: dict[str, NumberedList],
) -> Dataset:
    """The dataset with distinct triples, entities numbered from its items on."""
    entities = unite_roles("entity", ("head", "tail"), [columns])
    relations = unite_roles("relation", ("relation",), [columns])
    said = list(columns.notes)
    for role, found in (("entity", entities), ("relation", relations)):
        if role in lists:
            _refuse_unlisted(columns, role, found.labels, lists[role])
    labels, index, linked = _numbered(dataset, entities.labels.cast(pa.string()), links, said)
    head, tail = (index[codes] for codes in entities.codes)
    relation = relations.codes[0].astype(np.int64)
    triples, again = _distinct(head, relation, tail, len(labels), len(relations.labels))
    if again:
        said.append(f"{counted(again, 'duplicate triple')} left out")
    used = np.zeros(len(labels), bool)
    used[triples.head] = used[triples.tail] = True
    known = int(used[: len(dataset.items)].sum())
    if not known:
        raise DataError(
            f"{columns.source}: no entity is an item of the events (items are called "
            f"{dataset.items.labels[0].as_py()!r}, ..., entities {entities.labels[0].as_py()!r}, "
            "...): name a file of item and entity by --set data.links=FILE"
        )
    if known < len(dataset.items):
        said.append(f"{counted(len(dataset.items) - known, 'item')} of which nothing is known")
    names = {role: _names(lists.get(role), found.labels) for role, found in
             (("entity", entities), ("relation", relations))}  # fmt: skip
    if (listed := lists.get("relation")) is not None and len(listed) > len(relations.labels):
        idle = len(listed) - len(relations.labels)
        said.append(f"{counted(idle, 'relation')} of the list without triples")
    entity_names = None
    if names["entity"] is not None:
        place = np.full(len(labels), -1, np.int64)
        place[index] = np.arange(len(index))
        entity_names = names["entity"].take(pa.array(place, mask=place < 0))
    facts = Facts(
        Vocabulary(labels, entity_names), Vocabulary(relations.labels, names["relation"]), triples
    )
    counts = {
        "entities": len(labels),
        "relations": len(facts.relations),
        "facts": len(triples),
        "duplicate_facts": again,
        "items_linked": linked,
        "items_with_facts": known,
    }
    source = dataset.source
    source = replace(
        source,
        format=source.format if source.format == "sample" else f"{source.format}+facts",
        counts={**source.counts, **counts},
        notes=tuple(dict.fromkeys((*source.notes, *said))),
    )
    return replace(dataset, facts=facts, source=source)


def _numbered(
    dataset: Dataset, entities: pa.Array, links: dict[str, str] | None, said: list[str]
) -> tuple[pa.Array, Int64, int]:
    """Labels of all entities, items first; the new number of each entity; how many items link."""
    items = dataset.items.labels.cast(pa.string())
    own = items
    if links is not None:
        linked = pa.array([links.get(label) for label in items.to_pylist()], pa.string())
        first = np.unique(np.asarray(linked.drop_null().dictionary_encode().indices))
        shared = len(linked) - linked.null_count - len(first)
        if shared:
            said.append(f"{counted(shared, 'item')} with the entity of another: nothing is known")
        absent = int(
            pc.sum(pc.invert(pc.is_in(linked.drop_null(), value_set=entities))).as_py() or 0
        )
        if absent:
            said.append(f"{counted(absent, 'link')} to an entity without triples")
        seen: set[str] = set()
        named = []
        for item, entity in zip(items.to_pylist(), linked.to_pylist(), strict=True):
            fresh = entity is not None and entity not in seen
            named.append(entity if fresh else f"item:{item}")
            seen.add(named[-1])
        own = pa.array(named, pa.string())
    owner = np.asarray(pc.fill_null(pc.index_in(entities, value_set=own), -1), np.int64)
    others = owner < 0
    index = owner.copy()
    index[others] = len(items) + np.arange(int(others.sum()))
    labels = pa.concat_arrays([own, entities.take(pa.array(np.flatnonzero(others)))])
    return labels, index, int((~others).sum())


def _distinct(
    head: Int64, relation: Int64, tail: Int64, entities: int, relations: int
) -> tuple[Triples, int]:
    """The triples in order, without repetitions, and how many those were."""
    key = (head.astype(np.int64) * relations + relation) * entities + tail
    found = distinct(key)
    rest, tails = np.divmod(found, entities)
    heads, kinds = np.divmod(rest, relations)
    return Triples(heads, kinds, tails), len(key) - len(found)


def _names(listed: NumberedList | None, labels: pa.Array) -> pa.Array | None:
    return None if listed is None else listed.names.take(pa.array(listed.place(labels)))


def _refuse_unlisted(
    columns: TripleColumns, role: str, labels: pa.Array, listed: NumberedList
) -> None:
    """Refuse triples with a number that the list of entities or of relations lacks."""
    stranger = listed.place(labels) < 0
    if not stranger.any():
        return
    texts = set(labels.take(pa.array(np.flatnonzero(stranger))).cast(pa.string()).to_pylist())
    roles = ("head", "tail") if role == "entity" else ("relation",)
    bad = np.zeros(len(columns), bool)
    for name in roles:
        column = getattr(columns, name)
        values = pc.utf8_trim_whitespace(column.values.cast(pa.string()))
        bad |= np.asarray(pc.is_in(values, value_set=pa.array(sorted(texts))))[column.codes]
    rows = np.flatnonzero(bad)
    shown = "\n".join(f"  {where}: {line!r}" for where, line in columns.locate(rows[:_SHOWN]))
    raise DataError(
        f"{columns.source}: {counted(len(rows), 'triple')} with {role} numbers that "
        f"{listed.path.name} lacks (it has {len(listed):,} entries):\n{shown}"
    )

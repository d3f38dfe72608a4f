"""Load interactions with a knowledge graph, whose first entities are the items."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hasten.arrays import Int64, distinct
from hasten.config import DataOptions, KnowledgeOptions
from hasten.data.columns.checks import counted
from hasten.data.columns.ids import vocabulary
from hasten.data.columns.text import file_digest
from hasten.data.interactions.id_lists import NumberedList, load_with_lists, read_links
from hasten.data.interactions.side_files import unpacked
from hasten.data.readers.arrow import open_memory
from hasten.data.readers.columns import TRIPLE_ROLES
from hasten.data.readers.interface import Columns
from hasten.data.readers.triples import read_triples
from hasten.data.sources import catalog
from hasten.data.tables import Dataset, Facts, Triples, Vocabulary
from hasten.errors import DataError

_SHOWN = 5


def load_knowledge(
    options: KnowledgeOptions, seed: int, table: object | None = None, *, required: bool = True
) -> Dataset:
    """Load interactions (or take a table of them) with the knowledge graph about their items.

    required: whether missing triples are an error.

    Raises:
        DataError: what is wrong, with file, line and text.
    """
    entry = None if table is not None else catalog.registered(options.path)
    dataset, files, lists = load_with_lists(options, seed, table, entry, options.kg, options.links)
    if files.kg is not None:
        with unpacked(files.kg) as path_of_triples:
            columns = read_triples(path_of_triples, DataOptions())
        dataset = _with_source(dataset, files.kg, files.links)
    elif isinstance(entry, catalog.Sample) and entry.kind == "facts":
        facts, name = entry.make().facts, f"{entry.name} facts"
        columns = open_memory(facts, DataOptions(), name, TRIPLE_ROLES).parsed()
    elif not required:
        return dataset
    else:
        raise DataError(
            f"{dataset.source.path or dataset.name}: interactions, but no knowledge graph about "
            "the items: kg_final.txt in the folder, X.kg beside X.inter, or --set data.kg=FILE"
        )
    links = None if files.links is None else read_links(files.links)
    return _attach(dataset, columns, links, lists)


def _with_source(dataset: Dataset, *paths: Path | None) -> Dataset:
    """The dataset with the files of the knowledge graph in its source."""
    files = [path for path in paths if path is not None]
    notes = [note for note in dataset.source.notes if not note.startswith("files not used")]
    source = replace(dataset.source, notes=(*notes, f"knowledge graph from {files[0].name}"))
    return replace(dataset, source=source.plus(files=map(file_digest, files)))


def _attach(
    dataset: Dataset,
    columns: Columns,
    links: dict[str, str] | None,
    lists: dict[str, NumberedList],
) -> Dataset:
    """The dataset with distinct triples, whose first entities are its items.

    links: item -> entity, where the triples use other labels than the interactions. lists: role
    -> id list, which must hold every entity and relation.

    Raises:
        DataError: an id that its list lacks, or no triple about any item.
    """
    entities = vocabulary("entity", ("head", "tail"), [columns])
    relations = vocabulary("relation", ("relation",), [columns])
    notes = list(columns.notes)
    for role, found in (("entity", entities), ("relation", relations)):
        if role in lists:
            _refuse_unlisted(columns, role, found.labels, lists[role])
    labels, index, linked = _numbered(dataset, entities.labels.cast(pa.string()), links, notes)
    head, tail = (index[codes] for codes in entities.codes)
    relation = relations.codes[0].astype(np.int64)
    key = (head.astype(np.int64) * len(relations.labels) + relation) * len(labels) + tail
    rest, tails = np.divmod(distinct(key), len(labels))
    heads, kinds = np.divmod(rest, len(relations.labels))
    triples = Triples(heads, kinds, tails)
    if again := len(key) - len(triples):
        notes.append(f"{counted(again, 'duplicate triple')} left out")
    used, _ = triples.used(len(labels), len(relations.labels))
    known = int(used[: len(dataset.items)].sum())
    if not known:
        raise DataError(
            f"{columns.source}: no entity is an item of the interactions (items are called "
            f"{dataset.items.labels[0].as_py()!r}, ..., entities {entities.labels[0].as_py()!r}, "
            "...): name a file of item and entity by --set data.links=FILE"
        )
    if known < len(dataset.items):
        notes.append(f"{counted(len(dataset.items) - known, 'item')} without triples")
    entity_names = relation_names = None
    if (listed := lists.get("relation")) is not None:
        relation_names = listed.names_of(relations.labels)
        if idle := len(listed) - len(relations.labels):
            notes.append(f"{counted(idle, 'relation')} of the list without triples")
    if (listed := lists.get("entity")) is not None:
        place = np.full(len(labels), -1, np.int64)
        place[index] = np.arange(len(index))
        entity_names = listed.names_of(entities.labels).take(pa.array(place, mask=place < 0))
    facts = Facts(
        Vocabulary(labels, entity_names), Vocabulary(relations.labels, relation_names), triples
    )
    source = dataset.source.plus(
        notes,
        entities=len(labels),
        relations=len(facts.relations),
        facts=len(triples),
        duplicate_facts=again,
        items_linked=linked,
        items_with_facts=known,
    )
    if source.format != "sample":
        source = replace(source, format=f"{source.format}+facts")
    return replace(dataset, facts=facts, source=source)


def _numbered(
    dataset: Dataset, entities: pa.Array, links: dict[str, str] | None, notes: list[str]
) -> tuple[pa.Array, Int64, int]:
    """Labels of all entities, items first; each entity's new index; the number of linked items."""
    items = dataset.items.labels.cast(pa.string())
    own = items
    if links is not None:
        linked = pa.array([links.get(label) for label in items.to_pylist()], pa.string())
        first = np.unique(np.asarray(linked.drop_null().dictionary_encode().indices))
        shared = len(linked) - linked.null_count - len(first)
        if shared:
            notes.append(f"{counted(shared, 'item')} with the entity of another: no triples")
        absent = int(
            pc.sum(pc.invert(pc.is_in(linked.drop_null(), value_set=entities))).as_py() or 0
        )
        if absent:
            notes.append(f"{counted(absent, 'link')} to an entity without triples")
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


def _refuse_unlisted(columns: Columns, role: str, labels: pa.Array, listed: NumberedList) -> None:
    """Refuse triples with a number that the list of entities or of relations lacks."""
    stranger = listed.place(labels) < 0
    if not stranger.any():
        return
    texts = set(labels.take(pa.array(np.flatnonzero(stranger))).cast(pa.string()).to_pylist())
    roles = ("head", "tail") if role == "entity" else ("relation",)
    bad = np.zeros(len(columns), bool)
    for name in roles:
        column = columns.ids[name]
        values = pc.utf8_trim_whitespace(column.values.cast(pa.string()))
        bad |= np.asarray(pc.is_in(values, value_set=pa.array(sorted(texts))))[column.codes]
    rows = np.flatnonzero(bad)
    shown = "\n".join(f"  {where}: {line!r}" for where, line in columns.rows.locate(rows[:_SHOWN]))
    raise DataError(
        f"{columns.source}: {counted(len(rows), 'triple')} with {role} numbers that "
        f"{listed.path.name} lacks (it has {len(listed):,} entries):\n{shown}"
    )

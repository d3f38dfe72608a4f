"""Save a dataset as Parquet and JSON in a run folder, load it from there; its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hasten.atomic_write import atomic_path, write_atomically
from hasten.data import event_features, item_features
from hasten.data.columns.label_digest import add_labels
from hasten.data.event_features import EventFeatures
from hasten.data.event_store.opened import reopen
from hasten.data.graph_store.opened import open_graph_store
from hasten.data.interactions.store_features import copied_features, load_features, save_features
from hasten.data.item_features import ItemFeatures
from hasten.data.mapped_datasets import MAPPED
from hasten.data.store_folder.files import file_names, link
from hasten.data.tables import (
    AnyDataset,
    Dataset,
    Facts,
    Interactions,
    KnowledgeGraph,
    Modality,
    Source,
    Triples,
    Vocabulary,
)
from hasten.errors import DataError, HastenError, os_errors_as

FORMAT_VERSION = 1
FILES = ("users.parquet", "items.parquet", "interactions.parquet")
GRAPH_FILES = ("entities.parquet", "relations.parquet", "triples.parquet")
#: beside FILES, of a knowledge graph about the items
FACTS_FILES = ("entities.parquet", "relations.parquet", "facts.parquet")
DESCRIPTION = "dataset.json"
_DAMAGE = (OSError, pa.ArrowException, ValueError, LookupError, TypeError, RecursionError)
_TRIPLE = ("head", "relation", "tail")
#: types of columns in the fingerprint; others are int64
_DTYPES = {"rating": "<f4", "part": "<i1", "rank_last": "<i1"}


def describe_data(dataset: AnyDataset) -> dict[str, Any]:
    """The content of ``data.json`` in the run folder."""
    source = dataset.source
    store = {"store": str(dataset.folder)} if isinstance(dataset, MAPPED) else {}
    return {
        **store,
        "name": dataset.name,
        "fingerprint": fingerprint(dataset),
        "split": dataset.split,
        "format": source.format,
        "path": source.path,
        "files": list(source.files),
        "counts": source.counts,
        "notes": list(source.notes),
    }


def fingerprint(dataset: AnyDataset) -> str:
    """sha256 over the content: vocabularies, interactions, triples, parts; not paths or notes.

    Of a store, over the hashes of its files, so that these are not read.
    """
    if isinstance(dataset, MAPPED):
        return dataset.fingerprint
    vocabularies, columns = list(_vocabularies(dataset)), list(_columns(dataset).items())
    if isinstance(dataset, KnowledgeGraph):
        kind = "typed graph" if dataset.typed else "knowledge graph"
        features = [(str(number), modality) for number, modality in dataset.features]
    else:
        kind = "dataset"
        features = [(modality.name, modality) for modality in dataset.modalities]
        if dataset.facts is not None:
            vocabularies += [dataset.facts.entities, dataset.facts.relations]
            columns += _triple_columns(dataset.facts.triples).items()
    of_items, of_events = _features(dataset)
    digest = hashlib.sha256(f"hasten {kind} 1\n".encode())
    for name, modality in features:
        digest.update(f"features {name} {modality.digest}\n".encode())
    if of_items is not None:
        digest.update(f"item features {of_items.digest()}\n".encode())
    if of_events is not None:
        digest.update(f"event features {of_events.digest()}\n".encode())
    for vocabulary in vocabularies:
        add_labels(digest, vocabulary.labels, vocabulary.names)
    for name, column in columns:
        if column is None:
            digest.update(b"none\n")
            continue
        dtype = _DTYPES.get(name, "<i8")
        digest.update(f"{dtype} {len(column)}\n".encode())
        digest.update(np.ascontiguousarray(column, dtype).data)
    return digest.hexdigest()


def _features(dataset: AnyDataset) -> tuple[ItemFeatures | None, EventFeatures | None]:
    """The features of the items and of the events of sequences."""
    if not isinstance(dataset, Dataset):
        return None, None
    return dataset.item_features, dataset.event_features


def _vocabularies(dataset: AnyDataset) -> tuple[Vocabulary, Vocabulary]:
    if isinstance(dataset, KnowledgeGraph):
        return dataset.entities, dataset.relations
    return dataset.users, dataset.items


def _columns(dataset: AnyDataset) -> dict[str, NDArray[Any] | None]:
    """The columns of the triples or interactions by name, in the order of storage."""
    if isinstance(dataset, KnowledgeGraph):
        parts = {"part": dataset.part, "rank_last": dataset.rank_last}
        return {**_triple_columns(dataset.triples), **parts}
    events = dataset.interactions
    columns = {name: getattr(events, name) for name in ("user", "item", "rating", "time")}
    return {**columns, "part": dataset.part}


def stored_files(dataset: AnyDataset) -> list[str]:
    """The names of the files that :func:`save_dataset` writes."""
    if isinstance(dataset, MAPPED):
        return [*file_names(dataset.manifest), DESCRIPTION]
    return [*_tables(dataset), *copied_features(_modalities(dataset)), DESCRIPTION]


def save_dataset(dataset: AnyDataset, folder: Path) -> str:
    """Write vocabularies and interactions or triples (Parquet) and dataset.json.

    Each file is written atomically, dataset.json last. Returns the fingerprint.

    Raises:
        HastenError: a file cannot be written.
    """
    with os_errors_as(HastenError, "cannot be written", folder):
        folder.mkdir(parents=True, exist_ok=True)
        mark = fingerprint(dataset)
        of_items, of_events = _features(dataset)
        of_store: dict[str, Any] = {}
        if isinstance(dataset, MAPPED):
            link(dataset.folder, dataset.manifest, folder)
            of_store = dataset.reopening
        else:
            for name, table in _tables(dataset).items():
                with atomic_path(folder / name) as temporary:
                    pq.write_table(table, temporary)
        described = {
            "version": FORMAT_VERSION,
            "kind": "triples" if isinstance(dataset, KnowledgeGraph) else "interactions",
            "typed": isinstance(dataset, KnowledgeGraph) and dataset.typed,
            "facts": isinstance(dataset, Dataset) and dataset.facts is not None,
            "name": dataset.name,
            "split": dataset.split,
            "fingerprint": mark,
            "features": [] if of_store else save_features(_modalities(dataset), folder),
            "item_features": None if of_items is None else of_items.about(),
            "event_features": None if of_events is None else of_events.about(),
            "source": asdict(dataset.source),
            **of_store,
        }
        text = json.dumps(described, indent=2, ensure_ascii=False) + "\n"
        write_atomically(folder / DESCRIPTION, text.encode())
        return mark


def _modalities(dataset: AnyDataset) -> tuple[Modality, ...]:
    if isinstance(dataset, Dataset):
        return dataset.modalities
    return tuple(modality for _, modality in dataset.features)


def _tables(dataset: AnyDataset) -> dict[str, pa.Table]:
    """File name -> table."""
    columns = {name: column for name, column in _columns(dataset).items() if column is not None}
    tables = (*map(_vocabulary_table, _vocabularies(dataset)), pa.table(columns))
    names = GRAPH_FILES if isinstance(dataset, KnowledgeGraph) else FILES
    by_file = dict(zip(names, tables, strict=True))
    if isinstance(dataset, Dataset) and dataset.facts is not None:
        facts = dataset.facts
        described = map(_vocabulary_table, (facts.entities, facts.relations))
        tables = (*described, pa.table(_triple_columns(facts.triples)))
        by_file |= dict(zip(FACTS_FILES, tables, strict=True))
    for features in _features(dataset):
        by_file |= {} if features is None else features.to_tables()
    return by_file


def _triple_columns(triples: Triples) -> dict[str, Any]:
    return {name: getattr(triples, name) for name in _TRIPLE}


def _vocabulary_table(vocabulary: Vocabulary) -> pa.Table:
    columns = {"label": vocabulary.labels}
    if vocabulary.names is not None:
        columns["name"] = vocabulary.names
    return pa.table(columns)


def load_stored(folder: Path) -> AnyDataset:
    """The dataset that :func:`save_dataset` wrote, verified by its fingerprint.

    Raises:
        DataError: a file is missing or damaged, or of a newer version.
    """
    try:
        described = json.loads((folder / DESCRIPTION).read_text("utf-8"))
        version = described["version"]
        if version != FORMAT_VERSION:
            raise DataError(
                f"{folder}: stored in format {version}, but this hasten reads only format "
                f"{FORMAT_VERSION}: use the hasten version that wrote it"
            )
        if described.get("kind") == "store":
            return _require_same(reopen(folder, described), described, folder)
        if described.get("kind") == "graph store":
            return _require_same(open_graph_store(folder), described, folder)
        graph = described.get("kind") == "triples"
        names = GRAPH_FILES if graph else FILES
        first, second, table = _read(folder, names)
        make = _graph if graph else _dataset
        dataset: AnyDataset = make(described, _vocabulary(first), _vocabulary(second), table)
        if isinstance(dataset, Dataset) and described.get("facts"):
            entities, relations, triples = _read(folder, FACTS_FILES)
            facts = Facts(_vocabulary(entities), _vocabulary(relations), _triples(triples))
            dataset = replace(dataset, facts=facts)
        if isinstance(dataset, Dataset):
            modalities = load_features(described.get("features", []), folder, dataset.items.labels)
            dataset = replace(dataset, modalities=modalities)
            if about := described.get("item_features"):
                tables = _read(folder, item_features.FILES)
                dataset = replace(dataset, item_features=ItemFeatures.from_tables(about, tables))
            if about := described.get("event_features"):
                (cells,) = _read(folder, [event_features.FILE])
                dataset = replace(dataset, event_features=EventFeatures.from_table(about, cells))
        elif described.get("features"):
            modalities = load_features(described["features"], folder, dataset.entities.labels)
            by_type = tuple((int(each.name.removeprefix("type-")), each) for each in modalities)
            dataset = replace(dataset, features=by_type)
        return _require_same(dataset, described, folder)
    except FileNotFoundError as error:
        missing = Path(error.filename).name if error.filename else str(error)
        raise DataError(f"{folder} holds no stored dataset: {missing} missing") from error
    except _DAMAGE as error:
        cause = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{folder}: the stored dataset is damaged ({cause}): restore it from a copy of the run"
        ) from error


def _require_same(dataset: AnyDataset, described: dict[str, Any], folder: Path) -> AnyDataset:
    if fingerprint(dataset) != described["fingerprint"]:
        raise DataError(f"{folder}: the stored dataset does not match its fingerprint (damaged?)")
    return dataset


def _read(folder: Path, names: Sequence[str]) -> list[pa.Table]:
    return [pq.read_table(folder / name, partitioning=None) for name in names]


def _dataset(
    described: dict[str, Any], users: Vocabulary, items: Vocabulary, table: pa.Table
) -> Dataset:
    events = {name: np.array(table.column(name)) for name in table.column_names}
    part, interactions = events.pop("part"), Interactions(**events)
    name, split, source = described["name"], described["split"], _source(described)
    return Dataset(name, users, items, interactions, part, split, source)


def _graph(
    described: dict[str, Any], entities: Vocabulary, relations: Vocabulary, table: pa.Table
) -> KnowledgeGraph:
    part, rank_last = (np.array(table.column(name)) for name in ("part", "rank_last"))
    name, split, source = described["name"], described["split"], _source(described)
    typed = bool(described.get("typed", False))
    triples = _triples(table)
    return KnowledgeGraph(name, entities, relations, triples, part, split, source, rank_last, typed)


def _triples(table: pa.Table) -> Triples:
    return Triples(*(np.array(table.column(name)) for name in _TRIPLE))


def _source(described: dict[str, Any]) -> Source:
    source = dict(described["source"])
    source |= {key: tuple(source[key]) for key in ("files", "notes")}
    return Source(**source)


def _vocabulary(table: pa.Table) -> Vocabulary:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    return Vocabulary(columns["label"], columns.get("name"))

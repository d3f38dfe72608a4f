"""Load a knowledge graph: find the files, read, check and split them; add node features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hasten.arrays import Int64
from hasten.config import TripleOptions
from hasten.data.columns.checks import counted
from hasten.data.columns.text import file_digest
from hasten.data.graph.assemble import GraphRead, assemble_graph
from hasten.data.graph.files import holds_typed, located, typed_files
from hasten.data.graph.node_types import NodeTypes, ids_of
from hasten.data.graph.vocabularies import Dictionary, read_dictionary, read_relation_names
from hasten.data.readers import triples, typed
from hasten.data.readers.arrow import as_arrow, open_memory, tables_by_part
from hasten.data.readers.columns import TRIPLE_ROLES
from hasten.data.readers.features import FeatureFile, open_features
from hasten.data.readers.interface import Columns
from hasten.data.readers.names import read_names
from hasten.data.readers.node_table import NodeTable, read_nodes
from hasten.data.sources import catalog
from hasten.data.sources.fetch import fetched_options
from hasten.data.sources.files import Files, refuse_options, resolve, set_name
from hasten.data.tables import TYPE_MARK, KnowledgeGraph, Modality
from hasten.errors import DataError, UsageError, did_you_mean

_NODE_TABLES = ("nodes.tsv", "nodes.csv")
_FILE_OPTIONS = ("format", "train", "valid", "test", "separator", "entities", "relations")


def load_graph(options: TripleOptions, seed: int, table: Any = None) -> KnowledgeGraph:
    """Read, check and split the knowledge graph that the options name, or a table in memory.

    options.path: a file, an archive, a folder or a registered name; an existing path takes
    precedence over a name. table: columns head, relation and tail, or those of PrimeKG.

    Raises:
        DataError: data that cannot be used, with file, line and text.
    """
    check_format_and_split(options)
    if table is not None:
        refuse_options("a table in memory", options, ("path", *_FILE_OPTIONS))
        read = _read_tables(table, options)
        if options.names is not None:
            path = Path(options.names)
            read.names, read.files = read_names(path), (file_digest(path),)
        return assemble_graph(read, options, seed)
    name, entry = None, catalog.registered(options.path)
    if entry is None and holds_typed(options):
        return assemble_graph(_read_typed(options), options, seed)
    if entry is not None:
        if entry.kind not in ("triples", "typed"):
            raise DataError(f"{options.path} holds interactions, not triples")
        if isinstance(entry, catalog.Sample):
            return assemble_graph(_sample(entry, options), options, seed)
        # of the registered sets, only samples are typed: downloads hold triples
        options, name = fetched_options(entry, options), entry.name
    with located(options) as place:
        read = _read_triples(place, options)
        read.name = name or read.name
        return assemble_graph(read, options, seed)


def _read_typed(options: TripleOptions) -> GraphRead:
    """Read the edges of the files."""
    files = typed_files(options)
    nodes = table_of_nodes(options, files[0])
    read: list[tuple[Columns, int | None]] = []
    names: dict[str, str] = {} if nodes is None else dict(nodes.names)
    for file in files:
        columns, file_names = typed.read_edges(file, nodes)
        read.append((columns, file.part))
        if not names:
            names = file_names
            continue
        for label, name in file_names.items():
            if names.setdefault(label, name) != name:
                raise renamed_elsewhere(file.path, label, name, names[label])
    where = Path(options.path or options.train or files[0].path)
    digests = () if nodes is None else (file_digest(nodes.path),)
    forms = "+".join(dict.fromkeys(file.form for file in files))
    name, path = set_name(where), str(where)
    return GraphRead(name, path, forms, read, names=names, files=digests, typed=True, nodes=nodes)


def renamed_elsewhere(path: Path, label: str, now: str, before: str) -> DataError:
    """The error about a node with another name in another file."""
    kind, _, node = label.partition(TYPE_MARK)
    return DataError(
        f"{path}: duplicate ({kind}, {node}): named {now!r} here and {before!r} in another file"
    )


def table_of_nodes(options: TripleOptions, first: typed.EdgeFile) -> NodeTable | None:
    """The table of nodes that an option names, or that is in the folder of the edges."""
    if options.nodes is not None:
        if options.edges:
            raise UsageError("data.nodes has no effect with data.edges, whose headers name types")
        path = None if options.path is None else Path(options.path)
        return read_nodes(resolve("nodes", options.nodes, path))
    beside = [first.path.with_name(name) for name in _NODE_TABLES] if not options.edges else []
    tables = [path for path in beside if path.is_file()]
    return read_nodes(tables[0]) if tables and first.form == typed.METAEDGES else None


def _sample(entry: catalog.Sample, options: TripleOptions) -> GraphRead:
    """A built-in sample: always the same triples, whatever the seed of the run."""
    refuse_options(
        f"the built-in sample {entry.name}", options, (*_FILE_OPTIONS, "names", "columns")
    )
    sample = entry.make()
    read = _read_table(sample.table, options, entry.name)
    read.path, read.format, read.names = entry.name, "sample", {**read.names, **sample.names}
    return read


def _read_tables(data: Any, options: TripleOptions) -> GraphRead:
    """One table, or one for each part."""
    tables = tables_by_part(data)
    reads = [_read_table(table, options, name) for name, table, _ in tables]
    first = reads[0]
    if any(read.typed != first.typed for read in reads):
        raise DataError("some of the tables hold typed edges, others triples")
    first.name = "table"
    for read, (_, _, part) in zip(reads, tables, strict=True):
        read.columns = [(columns, part) for columns, _ in read.columns]
        first.names = {**read.names, **first.names}
    first.columns = [each for read in reads for each in read.columns]
    return first


def _read_table(table: Any, options: TripleOptions, name: str) -> GraphRead:
    """Triples, or typed edges with the columns of PrimeKG."""
    arrow = as_arrow(table, name)
    if typed.is_typed_table(arrow.column_names):
        refuse_options("a table in memory", options, ("nodes", "edges"))
        edges, names = typed.read_edge_table(arrow, name)
        return GraphRead(name, None, "table", [(edges, None)], names=names, typed=True)
    columns = open_memory(table, options, name, TRIPLE_ROLES).parsed()
    return GraphRead(name, None, "table", [(columns, None)])


def _read_triples(place: Files, options: TripleOptions) -> GraphRead:
    """Read the files of triples, and the dictionaries and names beside them."""
    columns_by_part = [(triples.read_triples(path, options), part) for path, part in place.parts]
    read = GraphRead(place.name, place.path, triples.NAME, columns_by_part, notes=place.notes)
    beside = (place.entities, place.relations, place.names, place.relation_names)
    read.files = (*place.archives, *(file_digest(path) for path in beside if path is not None))
    if place.entities is not None:
        read.entities = read_dictionary(place.entities)
    if place.relations is not None:
        read.relations = read_dictionary(place.relations)
    if place.names is not None:
        read.names = read_names(place.names)
    if place.relation_names is not None:
        known = _known(
            read.relations, [columns.ids["relation"].values for columns, _ in columns_by_part]
        )
        read.relation_names = read_relation_names(place.relation_names, known)
    return read


def _known(dictionary: Dictionary | None, columns: list[pa.Array]) -> set[str]:
    """The ids of relations, in the triples and in the dictionary."""
    known = set() if dictionary is None else {*dictionary.labels, *dictionary.numbers}
    for values in columns:
        known |= set(pc.utf8_trim_whitespace(values.cast(pa.string())).to_pylist())
    return known


def check_format_and_split(options: TripleOptions) -> None:
    """Refuse formats and splits that triples do not have."""
    if options.format not in (None, triples.NAME, *typed.FORMATS):
        raise UsageError(f"format {options.format!r} holds no triples: leave --format out")
    if options.split not in ("auto", "ratio", "given"):
        raise DataError(f"data.split={options.split} is for interactions; triples: ratio or given")


_SHOWN = 5


def with_node_features(graph: KnowledgeGraph, files: Mapping[str, str]) -> KnowledgeGraph:
    """The graph with features. files: type -> ``.npy`` or Parquet file.

    Row i of an ``.npy`` file is the node whose id is the number i; Parquet has a column ``id``. The
    run folder keeps a copy, whatever the size.

    Raises:
        DataError: no such type, a node without a row, values that are not finite.
    """
    types, labels = NodeTypes.of(graph), graph.entities.labels
    features = [
        (number, Modality.of(f"type-{number}", opened.taken(rows)))
        for number, opened, rows in feature_rows(files, types, labels, typed=graph.typed)
    ]
    return replace(graph, features=tuple(features))


def feature_rows(
    files: Mapping[str, str], types: NodeTypes, labels: pa.Array, *, typed: bool = True
) -> Iterator[tuple[int, FeatureFile, Int64]]:
    """The number of each type with features, the file, and the row of each of its nodes.

    labels: of all nodes, ``type::id`` if typed. Raises as :func:`with_node_features` does.
    """
    for name in files:
        if name not in types.names:
            raise DataError(
                f"data.features.{name}: no nodes of this type{did_you_mean(name, types.names)} "
                f"(there are {', '.join(types.names)})"
            )
    texts = ids_of(labels) if typed else labels.cast(pa.string())
    for number, name in enumerate(types.names):
        if name not in files:
            continue
        first, last = types.offsets[number : number + 2].tolist()
        opened = open_features(Path(files[name]))
        type_labels = texts.slice(first, last - first)
        rows = opened.rows_of(_numbers(type_labels) if opened.items is None else type_labels)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            listed = ", ".join(str(type_labels[i]) for i in missing[:_SHOWN].tolist())
            more = ", ..." if len(missing) > _SHOWN else ""
            raise DataError(
                f"{files[name]}: no row for {counted(len(missing), 'node')} of type {name!r}: "
                f"{listed}{more}; give them rows (of zeros, say), or leave the type's file out"
            )
        yield number, opened, rows


def _numbers(ids: pa.Array) -> pa.Array:
    """Ids as numbers if all of them are numbers."""
    try:
        return ids.cast(pa.int64())
    except pa.ArrowInvalid:
        return ids

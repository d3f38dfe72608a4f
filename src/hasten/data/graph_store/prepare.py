"""Convert files of typed edges to a store: triples, links and messages, each in a mapped file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.config import TypedGraphOptions
from hasten.data.columns.label_digest import add_labels
from hasten.data.graph.files import typed_files
from hasten.data.graph.load import load_graph
from hasten.data.graph.messages import Links, Messages, endpoints, narrow
from hasten.data.graph.node_types import NodeTypes
from hasten.data.graph_store import manifest
from hasten.data.graph_store.manifest import GraphManifest
from hasten.data.store_folder.files import (
    describe,
    new_store,
    origin_of,
    save_column,
    save_vocabulary,
    write_manifest,
)
from hasten.data.tables import TRAIN, KnowledgeGraph, Triples
from hasten.errors import UsageError

#: what is reported: (what is done, how much of it, all of it)
Report = Callable[[str, int, int], None]
_STAGES = ("triples", "links", "messages", "endpoints of links")


def prepare_graph(
    options: TypedGraphOptions,
    out: Path,
    overwrite: bool = False,
    report: Report = lambda *_: None,
) -> GraphManifest:
    """Read the typed edges that the options name, divide them and write a store.

    The split is the one of a run with the seed ``data.split_seed`` (none: 0). out: a folder that
    does not exist; overwrite: or a store, which is replaced at the end. An interrupted call leaves
    the folder as it was. Preparing holds the graph in memory; training from the store does not.

    Raises:
        DataError: what is wrong with the data, with file, line and text.
        UsageError: options that a store does not hold, or a folder that exists.
    """
    if options.features:
        raise UsageError("data.features: a store holds edges; features of nodes need the files")
    if options.refit:
        raise UsageError("data.refit: a store is divided once; train from the files")
    if options.unknown == "rank-last":
        raise UsageError("data.unknown=rank-last: a store does not mark triples; drop or keep them")
    with new_store(out, overwrite, GraphManifest) as folder:
        graph = load_graph(options, options.seed_for_split(0))
        written = _write(graph, options, folder, report)
        write_manifest(folder, written)
    return written


def _write(
    graph: KnowledgeGraph, options: TypedGraphOptions, folder: Path, report: Report
) -> GraphManifest:
    types, described = NodeTypes.of(graph), {}
    for name, vocabulary in (
        (manifest.ENTITIES, graph.entities),
        (manifest.RELATIONS, graph.relations),
    ):
        save_vocabulary(folder / name, vocabulary)
        described[name] = describe(folder / name)

    def save(names: tuple[str, ...], columns: tuple[NDArray[Any], ...]) -> None:
        for name, column in zip(names, columns, strict=True):
            file = f"{name}.{'i4' if column.dtype == np.int32 else 'i8'}"
            described[file] = save_column(folder / file, column)

    def stage(number: int) -> None:
        report("writing", number, len(_STAGES))

    nodes, count = len(graph.entities), len(graph.triples)
    triples, train = graph.triples, graph.of(TRAIN)
    bounds = (nodes, len(graph.relations), nodes)
    columns = (triples.head, triples.relation, triples.tail)
    save(
        manifest.TRIPLES, tuple(narrow(c, bound) for c, bound in zip(columns, bounds, strict=True))
    )
    queries = _queries(train, len(graph.relations))
    stage(1)
    links = Links.of(train, types)
    del triples, train
    save(manifest.LINKS, (links.head, links.tail))
    stage(2)
    messages = Messages.of(links, types)
    save(manifest.MESSAGES, tuple(getattr(messages, name) for name in manifest.MESSAGES))
    stage(3)
    save(manifest.ENDPOINTS, endpoints(links, nodes))
    stage(4)
    digest = hashlib.sha256(b"hasten typed graph store 1\n")
    for vocabulary in (graph.entities, graph.relations):
        add_labels(digest, vocabulary.labels, vocabulary.names)
    for name in sorted(described.keys() - {manifest.ENTITIES, manifest.RELATIONS}):
        digest.update(f"{name} {described[name]['sha256']}\n".encode())
    source = graph.source
    paths = [file.path for file in typed_files(options)]  # behind a table of nodes
    origins = [origin_of(*each) for each in zip(paths, source.files[-len(paths) :], strict=True)]
    return GraphManifest(
        graph.name, source.format, source.path or "", digest.hexdigest(),
        {"read": count, **source.counts}, list(source.notes), described, origins,
        options.model_dump(mode="json", exclude_defaults=True), graph.split,
        {
            "names": list(types.names),
            **{n: getattr(types, n).tolist() for n in ("offsets", "source", "target", "symmetric")},
        },
        messages.bounds.tolist(), links.bounds.tolist(), queries,
    )  # fmt: skip


def _queries(train: Triples, relations: int) -> int:
    """The distinct (entity, relation) of both directions."""
    sides = (train.head, train.tail)
    return sum(len(np.unique(side * relations + train.relation)) for side in sides)

"""A store of a typed graph that is made in memory: what :mod:`.prepare` must write."""

from __future__ import annotations

import hashlib

import numpy as np

from hasten.data.columns.label_digest import add_labels
from hasten.data.graph.files import typed_files
from hasten.data.graph.load import load_graph
from hasten.data.graph.messages import Links, Messages, endpoints, narrow
from hasten.data.graph.node_types import NodeTypes
from hasten.data.graph_store import manifest
from hasten.data.graph_store.manifest import GraphManifest
from hasten.data.store_folder.files import (
    describe,
    origin_of,
    save_column,
    save_vocabulary,
    write_manifest,
)
from hasten.data.tables import TRAIN


def write_in_memory(options, folder):
    """Load the graph, and write its arrays."""
    folder.mkdir()
    graph = load_graph(options, options.seed_for_split(0))
    types, described = NodeTypes.of(graph), {}
    vocabularies = (graph.entities, graph.relations)
    for name, vocabulary in zip((manifest.ENTITIES, manifest.RELATIONS), vocabularies, strict=True):
        save_vocabulary(folder / name, vocabulary)
        described[name] = describe(folder / name)

    def save(names, columns):
        for name, column in zip(names, columns, strict=True):
            file = f"{name}.{'i4' if column.dtype == np.int32 else 'i8'}"
            described[file] = save_column(folder / file, column)

    nodes, triples, train = len(graph.entities), graph.triples, graph.of(TRAIN)
    bounds = (nodes, len(graph.relations), nodes)
    columns = (triples.head, triples.relation, triples.tail)
    save(manifest.TRIPLES, [narrow(c, bound) for c, bound in zip(columns, bounds, strict=True)])
    keys = (side * len(graph.relations) + train.relation for side in (train.head, train.tail))
    queries = sum(len(np.unique(key)) for key in keys)
    links = Links.of(train, types)
    save(manifest.LINKS, (links.head, links.tail))
    messages = Messages.of(links, types)
    save(manifest.MESSAGES, [getattr(messages, name) for name in manifest.MESSAGES])
    save(manifest.ENDPOINTS, endpoints(links, nodes))
    digest = hashlib.sha256(b"hasten typed graph store 1\n")
    for vocabulary in vocabularies:
        add_labels(digest, vocabulary.labels, vocabulary.names)
    for name in sorted(described.keys() - {manifest.ENTITIES, manifest.RELATIONS}):
        digest.update(f"{name} {described[name]['sha256']}\n".encode())
    source = graph.source
    paths = [file.path for file in typed_files(options)]  # behind a table of nodes
    origins = [origin_of(*each) for each in zip(paths, source.files[-len(paths) :], strict=True)]
    arrays = ("offsets", "source", "target", "symmetric")
    written = GraphManifest(
        graph.name, source.format, source.path, digest.hexdigest(), source.counts,
        list(source.notes), described, origins,
        options.model_dump(mode="json", exclude_defaults=True), graph.split,
        {"names": list(types.names), **{name: getattr(types, name).tolist() for name in arrays}},
        messages.bounds.tolist(), links.bounds.tolist(), queries,
    )  # fmt: skip
    write_manifest(folder, written)
    return written

"""Convert files of typed edges to a store, in bounded memory: what is held grows with the nodes.

The edges are read in blocks and numbered (:mod:`.collect`, :mod:`.edges`) and divided into ranges
by the end with the lower number, so that a range holds all edges between two nodes. Passes over the
ranges find symmetric relations (:mod:`.survey`), the split (:mod:`.divide`), and duplicates and
leaks (:mod:`.judge`); :mod:`.columns` sorts and writes the files. The result is that of
:func:`~hasten.data.graph.load.load_graph` and :mod:`hasten.data.graph.messages` in memory.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.config import TypedGraphOptions
from hasten.data.columns.label_digest import add_labels
from hasten.data.graph.assemble import GIVEN_REMEDY, GraphRead, count_notes, is_given
from hasten.data.graph.files import typed_files
from hasten.data.graph.load import check_format_and_split, renamed_elsewhere, table_of_nodes
from hasten.data.graph.node_types import NodeTypes, type_codes
from hasten.data.graph.random_splits import link_words
from hasten.data.graph.typed_links import turned_notes
from hasten.data.graph_store import columns, manifest
from hasten.data.graph_store.collect import Collected, collect
from hasten.data.graph_store.divide import LinkSplit
from hasten.data.graph_store.edges import Edges, number_edges
from hasten.data.graph_store.features import write_features
from hasten.data.graph_store.findings import Findings
from hasten.data.graph_store.judge import Judged, judge
from hasten.data.graph_store.link_ranges import LinkRange
from hasten.data.graph_store.manifest import GraphManifest
from hasten.data.graph_store.survey import survey
from hasten.data.graph_store.triples import CodesByRow, write_triples
from hasten.data.readers.names import with_names
from hasten.data.sources import catalog
from hasten.data.sources.files import set_name
from hasten.data.splits import given_parts
from hasten.data.store_folder.files import (
    describe,
    new_store,
    origin_of,
    save_vocabulary,
    write_manifest,
)
from hasten.data.tables import Source, Vocabulary
from hasten.errors import UsageError

#: what is reported: (what is done, how much of it, all of it)
Report = Callable[[str, int, int], None]


def prepare_graph(
    options: TypedGraphOptions,
    out: Path,
    overwrite: bool = False,
    report: Report = lambda *_: None,
) -> GraphManifest:
    """Read the typed edges that the options name, divide them and write a store.

    The split is the one of a run with the seed ``data.split_seed`` (none: 0). out: a folder that
    does not exist; overwrite: or a store, which is replaced at the end. An interrupted call leaves
    the folder as it was.

    Raises:
        DataError: what is wrong with the data, with file, line and text.
        UsageError: options that a store does not hold, or a folder that exists.
    """
    if options.refit:
        raise UsageError("data.refit: a store is divided once; train from the files")
    if options.unknown == "rank-last":
        raise UsageError("data.unknown=rank-last: a store does not mark triples; drop or keep them")
    check_format_and_split(options)
    if catalog.registered(options.path) is not None:
        raise UsageError(f"{options.path} is small: train from it by its name")
    with new_store(out, overwrite, GraphManifest) as folder:
        files = typed_files(options)
        table = table_of_nodes(options, files[0])
        where = Path(options.path or options.train or files[0].path)
        forms = "+".join(dict.fromkeys(file.form for file in files))
        read = GraphRead(set_name(where), str(where), forms, [], typed=True, nodes=table)
        (folder / "scratch").mkdir()
        collected = collect(files, table, folder / "scratch", partial(report, "reading"))
        labels = collected.labels()
        read.names = _names(collected, labels)
        written = _write(read, collected, labels, options, folder, report)
        write_manifest(folder, written)
    return written


def _write(
    read: GraphRead,
    collected: Collected,
    labels: pa.Array,
    options: TypedGraphOptions,
    folder: Path,
    report: Report,
) -> GraphManifest:
    with read.errors():
        edges = number_edges(collected, labels, options, read.where)
        notes = [*edges.notes]
        findings, codes, split = _judged(edges, collected, options, notes, report)
        used, used_relations = findings.used, findings.used_relations
        entities, _ = Vocabulary(edges.entities).compact(np.flatnonzero(used))
        if read.names:
            entities, more = with_names(entities, read.names, "entities")
            notes += more
    relations, _ = Vocabulary(pa.array(edges.labels, pa.string())).compact(
        np.flatnonzero(used_relations)
    )
    types = _types(edges, findings, entities.labels)
    feature_files, features = write_features(options.features, types, entities.labels, folder)
    numbers = ((np.cumsum(used) - 1).astype(np.int32), np.cumsum(used_relations) - 1)
    slices, sizes = edges.slices[used], findings.sizes

    write_triples(edges, codes, sizes, numbers, folder, partial(report, "writing"))
    codes.buckets.remove()
    edges.remove()
    raw = columns.RawLinks(edges.folder, numbers, types, slices)
    bounds = columns.write_links(raw, folder, partial(report, "links"))
    of_messages = partial(report, "messages")
    message_bounds, queries = columns.write_messages(raw, bounds, folder, of_messages)
    columns.write_endpoints(raw, int(bounds[-1]), folder)
    described = {}
    for name, vocabulary in ((manifest.ENTITIES, entities), (manifest.RELATIONS, relations)):
        save_vocabulary(folder / name, vocabulary)
        described[name] = describe(folder / name)
    digest = hashlib.sha256(b"hasten typed graph store 1\n")
    for vocabulary in (entities, relations):
        add_labels(digest, vocabulary.labels, vocabulary.names)
    of_columns = {n: describe(folder / n) for n in (*columns.files(folder), *feature_files)}
    for name in sorted(of_columns):
        digest.update(f"{name} {of_columns[name]['sha256']}\n".encode())
    described |= of_columns
    trained = np.diff(np.fromfile(folder / "offsets.i8", np.int64)) > 0
    counts: dict[str, Any] = findings.counts(edges.count, trained, np.diff(bounds) > 0)
    shutil.rmtree(edges.folder)
    source = Source(read.format, read.path).plus([*notes, *count_notes(counts)], **counts)
    origins = [
        origin_of(f.path, o) for f, o in zip(collected.edge_files, collected.files, strict=True)
    ]
    return GraphManifest(
        read.name, read.format, read.path or "", digest.hexdigest(), source.counts,
        list(source.notes), described, origins,
        options.model_dump(mode="json", exclude_defaults=True), split,
        {
            "names": list(types.names),
            **{n: getattr(types, n).tolist() for n in ("offsets", "source", "target", "symmetric")},
        },
        message_bounds.tolist(), bounds.tolist(), queries, features,
    )  # fmt: skip


def _names(collected: Collected, labels: pa.Array) -> dict[str, str]:
    """The names of nodes by label. Raises DataError if files differ in a name."""
    names = {} if collected.table is None else dict(collected.table.names)
    by_file = collected.names.by_file()
    for file, (nodes, texts) in zip(collected.edge_files, by_file, strict=True):
        called = zip(labels.take(pa.array(nodes)).to_pylist(), texts.to_pylist(), strict=True)
        for label, name in called:
            if names.setdefault(label, name) != name:
                raise renamed_elsewhere(file.path, label, name, names[label])
    return names


def _judged(
    edges: Edges,
    collected: Collected,
    options: TypedGraphOptions,
    notes: list[str],
    report: Report,
) -> tuple[Findings, CodesByRow, str]:
    """Divide the edges and judge them. Also writes the links of the training part, unsorted.

    Returns what was found, the codes of the edges, and the description of the split.
    """
    named = [file.part for file in collected.edge_files if file.part is not None]
    given = is_given(bool(named), options)
    parts = np.array(named, np.int8) if given and named else None
    buckets = edges.by_low_node()
    surveyed = survey(buckets, edges, parts, options.symmetric, partial(report, "sorting"))
    notes += turned_notes(surveyed.turned, surveyed.repeated)
    links_split = None
    if given:
        present = np.flatnonzero(surveyed.present).astype(np.int8)
        _, split = given_parts(None if parts is None else present, "triple", GIVEN_REMEDY)
    else:
        seed = options.seed_for_split(0)
        links_split = LinkSplit(edges, surveyed, options.ratios, seed)
        split = link_words(options.ratios, seed)
    findings, codes = Findings(edges, edges.folder), CodesByRow(edges)

    def one(number: int, of_range: list[NDArray[Any]]) -> tuple[LinkRange, Judged]:
        links = LinkRange.of(of_range, edges, parts)
        of_links = None if links_split is None else links_split.parts
        return links, judge(number, links, edges, surveyed, of_links, options)

    def judged() -> Iterator[tuple[NDArray[Any], NDArray[np.uint8]]]:
        done = 0
        with ExitStack() as stack:
            raw = [stack.enter_context((edges.folder / n).open("wb")) for n in columns.RAW]
            for links, each in buckets.map(one):
                findings.add(each, links.low, links.high)
                kinds = columns.RAW.values()
                for column, kind, file in zip([*each.links], kinds, raw, strict=True):
                    np.asarray(column, kind).tofile(file)
                done += len(links.row) + links.repeated
                report("dividing", done, edges.count)
                yield each.row, each.code

    codes.fill(judged())
    buckets.remove()
    notes += findings.policies(options, collected.rows)
    return findings, codes, split


def _types(edges: Edges, findings: Findings, labels: pa.Array) -> NodeTypes:
    """The types of the stored nodes and relations. labels: of the stored nodes."""
    names, code = type_codes(labels)
    place = {name: number for number, name in enumerate(names)}
    kept = np.flatnonzero(findings.used_relations)
    source, target = (
        np.array([place[edges.types[kind]] for kind in end[kept].tolist()], np.int64)
        for end in (edges.source, edges.target)
    )
    offsets = np.searchsorted(code, np.arange(len(names) + 1)).astype(np.int64)
    return NodeTypes(names, offsets, source, target, findings.directions.symmetric(edges)[kept])

"""Load the typed edges of a graph, and the table of its nodes."""

from __future__ import annotations

from pathlib import Path

from hasten.config import TripleOptions
from hasten.data.columns.text import file_digest, sample
from hasten.data.graph.assemble import GraphRead
from hasten.data.readers import typed
from hasten.data.readers.interface import Columns
from hasten.data.readers.node_table import NodeTable, read_nodes
from hasten.data.readers.typed import EDGE_FILES, METAEDGES, SUMMARIES, EdgeFile
from hasten.data.sources import catalogue
from hasten.data.sources.files import (
    Files,
    data_files,
    located_parts,
    part_files,
    resolve,
    set_name,
)
from hasten.data.tables import TYPE_MARK
from hasten.errors import DataError, UsageError

_NODE_TABLES = ("nodes.tsv", "nodes.csv")
_OF_TYPED = ("nodes", "edges", "node_types", "edge_types", "symmetric")


def holds_typed(options: TripleOptions) -> bool:
    """Whether the options name a typed graph: by an option, or by the header of the first file.

    Raises:
        UsageError: options of typed graphs for data that are not typed.
    """
    if options.format is not None:
        found = options.format in SUMMARIES
    elif options.edges or options.nodes:
        found = True
    else:
        found = _first_claims(options)
    given = [f"data.{key}" for key in _OF_TYPED if getattr(options, key)]
    if given and not found:
        raise UsageError(f"{', '.join(given)}: these data hold no typed edges")
    return found


def _first_claims(options: TripleOptions) -> bool:
    path = options.train or options.path
    if path is None:
        return False
    if options.train is None and not Path(path).exists():
        entry = catalogue.CATALOGUE.get(path)
        return entry is not None and entry.kind == "typed"
    try:
        first = _files(options)[0][0]
        return typed.claim(sample(first)) is not None
    except DataError:
        return False


def read_typed(options: TripleOptions) -> GraphRead:
    """Read the edges of the files."""
    files = typed_files(options)
    nodes = _nodes(options, files[0])
    read: list[tuple[Columns, int | None]] = []
    names: dict[str, str] = {} if nodes is None else dict(nodes.names)
    for file in files:
        columns, found = typed.read_edges(file, nodes)
        for label, name in found.items():
            if names.setdefault(label, name) != name:
                kind, _, node = label.partition(TYPE_MARK)
                raise DataError(
                    f"{file.path}: duplicate ({kind}, {node}): named {name!r} here and "
                    f"{names[label]!r} in another file"
                )
        read.append((columns, file.part))
    where = Path(options.path or options.train or files[0].path)
    digests = () if nodes is None else (file_digest(nodes.path),)
    forms = "+".join(dict.fromkeys(file.form for file in files))
    name, path = set_name(where), str(where)
    return GraphRead(name, path, forms, read, names=names, files=digests, typed=True, nodes=nodes)


def typed_files(options: TripleOptions) -> list[EdgeFile]:
    """Every file of edges, and how it is read."""
    named = options.format in SUMMARIES and options.format != EDGE_FILES
    form = str(options.format) if named else ""
    default = "" if options.nodes is None else METAEDGES
    return [typed.open_edge_file(*found, form, default) for found in _files(options)]


def _files(options: TripleOptions) -> list[tuple[Path, int | None, str | None]]:
    """(file, its part, its relation) of every file of edges."""
    path = None if options.path is None else Path(options.path)
    if options.edges:
        if path is not None and not path.is_dir():
            raise UsageError("data.edges names files: data.path is the folder that they lie in")
        found = sorted(options.edges.items())
        return [(resolve(f"edges.{name}", file, path), None, name) for name, file in found]
    return [(file, part, None) for file, part in located_parts(options, path, _in_folder).parts]


def _in_folder(folder: Path) -> Files:
    """The parts in a folder, or its only file of typed edges."""
    candidates = data_files(folder)
    if parts := part_files(folder, candidates):
        return Files(set_name(folder), str(folder), parts)
    edges = [p for p in candidates if typed.claim(sample(p)) is not None]
    if len(edges) != 1:
        listed = ", ".join(p.name for p in edges or candidates) or "nothing"
        raise DataError(f"{folder}: one file of typed edges is expected: {listed}. Name it")
    return Files(set_name(folder), str(folder), ((edges[0], None),))


def _nodes(options: TripleOptions, first: EdgeFile) -> NodeTable | None:
    """The table of nodes that an option names, or that is in the folder of the edges."""
    if options.nodes is not None:
        if options.edges:
            raise UsageError("data.nodes has no effect with data.edges, whose headers name types")
        path = None if options.path is None else Path(options.path)
        return read_nodes(resolve("nodes", options.nodes, path))
    beside = [first.path.with_name(name) for name in _NODE_TABLES] if not options.edges else []
    found = [path for path in beside if path.is_file()]
    return read_nodes(found[0]) if found and first.form == METAEDGES else None

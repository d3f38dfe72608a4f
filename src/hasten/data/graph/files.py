"""Find the files of a knowledge graph: a file, an archive, a folder, or files named one by one."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hasten.config import TripleOptions
from hasten.data.columns.text import file_digest, sample
from hasten.data.readers import triples as reader
from hasten.data.readers import typed
from hasten.data.readers.interface import Claim
from hasten.data.readers.typed import EDGE_FILES, FORMATS, METAEDGES, EdgeFile
from hasten.data.sources import catalog
from hasten.data.sources.archives import is_archive, unpack
from hasten.data.sources.file_names import stem
from hasten.data.sources.files import (
    Files,
    data_files,
    is_features,
    is_graph,
    joined_files,
    located_parts,
    part_files,
    resolve,
    set_name,
    unused_note,
)
from hasten.data.sources.several_files import numbered_with_rows, partitioned_files
from hasten.errors import DataError, UsageError

#: conventional names of dictionaries, without their ending
_ENTITY_FILES = ("node_dict", "entity_dict", "entities", "entity2id", "node2id", "entity_ids")
_RELATION_FILES = ("rel_dict", "relation_dict", "relations", "relation2id", "rel2id")
_NAME_FILES = ("edge_map",)
_DICTIONARY_ENDINGS = (".txt", ".tsv", ".dict", ".json", ".csv")
_ARCHIVE_ENDING = re.compile(r"\.(tar(\.(gz|bz2|xz))?|tgz|zip)$", re.IGNORECASE)
_OF_TYPED = ("nodes", "edges", "node_types", "edge_types", "symmetric")


@contextmanager
def located(options: TripleOptions) -> Iterator[Files]:
    """The files that the options name. An archive is unpacked while the context is open.

    Raises:
        DataError: a file is missing, or a folder with several candidates.
        UsageError: contradictory options.
    """
    path = None if options.path is None else Path(options.path)
    archive = _archive(path) if path is not None and options.train is None else None
    if archive is None:
        yield _locate(options, path, None)
        return
    with tempfile.TemporaryDirectory(prefix="hasten-") as scratch:
        folder = Path(scratch) / (_ARCHIVE_ENDING.sub("", archive.name) or "archive")
        unpack(archive, folder)
        inner = _descend(folder)
        try:
            files = _locate(options, inner, set_name(folder))
            yield replace(files, path=str(archive), archives=(file_digest(archive),))
        except DataError as error:
            raise DataError(str(error).replace(str(inner), str(archive))) from error


def _archive(path: Path) -> Path | None:
    """The path if it is an archive, or the only data file of a folder if that is an archive."""
    if path.is_dir():
        files = [p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")]
        data = [p for p in files if not p.name.lower().startswith("readme")]
        return data[0] if len(data) == 1 and is_archive(data[0]) else None
    return path if path.is_file() and is_archive(path) else None


def _descend(folder: Path) -> Path:
    """The innermost folder, as long as a folder holds nothing but one folder."""
    while True:
        inside = [p for p in folder.iterdir() if not p.name.startswith((".", "__MACOSX"))]
        if len(inside) != 1 or not inside[0].is_dir():
            return folder
        folder = inside[0]


def _locate(options: TripleOptions, path: Path | None, name: str | None) -> Files:
    entities = _dictionary("entities", options.entities, path, _ENTITY_FILES)
    relations = _dictionary("relations", options.relations, path, _RELATION_FILES)
    relation_names = _dictionary("relation_names", options.relation_names, path, _NAME_FILES)
    names = _names(options.names, path)
    beside = {p for p in (entities, relations, relation_names, names) if p is not None}
    place = located_parts(options, path, lambda folder: _folder(folder, beside, options))
    explicit = {options.entities, options.relations, options.names, options.relation_names}
    neighbors = [p.name for p in sorted(beside) if str(p) not in explicit]
    notes = (f"taken from the same folder: {', '.join(neighbors)}",) if neighbors else ()
    return replace(
        place,
        name=name or place.name,
        names=names,
        notes=(*place.notes, *notes),
        entities=entities,
        relations=relations,
        relation_names=relation_names,
    )


def _names(given: str | None, path: Path | None) -> Path | None:
    """The file of names: that of the option, ``X.names.csv`` beside ``X.csv`` or in the folder."""
    candidates: list[Path] = []
    if path is not None and path.is_dir():
        candidates = sorted(p for end in ("csv", "tsv", "txt") for p in path.glob(f"*.names.{end}"))
    elif path is not None:
        candidates = [path.with_name(f"{stem(path)}.names.csv")]
    return _only("names", given, path, candidates)


def _dictionary(
    key: str, given: str | None, path: Path | None, known: tuple[str, ...]
) -> Path | None:
    """The dictionary that an option names, or one with a conventional name in the folder."""
    names = [stem + end for stem in known for end in _DICTIONARY_ENDINGS]
    return _only(key, given, path, [] if path is None else [path / name for name in names])


def _only(key: str, given: str | None, path: Path | None, usual: list[Path]) -> Path | None:
    """The file that an option names, or the only one of the usual files that exists."""
    if given is not None:
        return resolve(key, given, path)
    existing = [file for file in usual if file.is_file()]
    if len(existing) > 1:
        names = ", ".join(p.name for p in existing)
        raise DataError(f"{path}: {names}: choose with --set data.{key}=FILE")
    return existing[0] if existing else None


def _folder(folder: Path, beside: set[Path], options: TripleOptions) -> Files:
    """The files of triples in a folder, by the first of these rules that applies.

    Numbered or partitioned files are joined; files named after the parts (train, valid, test) are
    the parts; else exactly one file must be readable as triples. ``beside``: files to leave out.
    """
    data_paths = [p for p in data_files(folder) if p not in beside]
    if files := numbered_with_rows(data_paths) or ([] if data_paths else partitioned_files(folder)):
        return joined_files(Files(set_name(folder), str(folder), ()), files)
    data_paths = data_paths or [p for p in sorted(folder.glob("*.npy")) if not is_features(p)]
    candidates = [p for p in data_paths if stem(p) != "nodes"] or data_paths
    graphs = [p for p in candidates if is_graph(p)]
    parts: tuple[tuple[Path, int | None], ...] = part_files(folder, candidates)
    if not parts or (graphs and not claims_triples(parts[0][0], options)):
        readable = [p for p in candidates if claims_triples(p, options)]
        if len(readable) > 1:  # exact names first, then what can be nothing but triples
            certain = [p for p in readable if claims_triples(p, options, named=False)]
            readable = next((f for f in (graphs, certain) if len(f) == 1), readable)
        if len(readable) != 1:
            listed = ", ".join(p.name for p in readable or candidates) or "nothing"
            problem = (
                "more than one file may hold the triples" if readable else "no triples are found"
            )
            raise DataError(
                f"{folder}: {problem}: {listed}. Name one file, or data.train, data.valid and "
                "data.test"
            )
        parts = ((readable[0], None),)
    return Files(set_name(folder), str(folder), parts, notes=unused_note(data_paths, parts))


def claims_triples(path: Path, options: TripleOptions, named: bool = True) -> bool:
    """Whether a file can be read as triples.

    named: the user asked for triples, so a file that could hold interactions as well counts.
    """
    try:
        if reader.is_array(path):
            return len(reader.open_array(path)) > 0
        return isinstance(reader.claim(sample(path), options, named), Claim)
    except DataError:
        return False


def holds_typed(options: TripleOptions) -> bool:
    """Whether the options name a typed graph: by an option, or by the header of the first file.

    Raises:
        UsageError: options of typed graphs for data that are not typed.
    """
    if options.format is not None:
        is_typed = options.format in FORMATS
    elif options.edges or options.nodes:
        is_typed = True
    else:
        is_typed = _first_claims(options)
    keys_of_typed = [f"data.{key}" for key in _OF_TYPED if getattr(options, key)]
    if keys_of_typed and not is_typed:
        raise UsageError(f"{', '.join(keys_of_typed)}: these data hold no typed edges")
    return is_typed


def _first_claims(options: TripleOptions) -> bool:
    """Whether the header of the first file is that of typed edges."""
    path = options.train or options.path
    if path is None:
        return False
    try:
        if options.train is None and (entry := catalog.registered(path)) is not None:
            return entry.kind == "typed"
        first = _edge_files(options)[0][0]
        return typed.claim(sample(first)) is not None
    except DataError:
        return False


def typed_files(options: TripleOptions) -> list[EdgeFile]:
    """Every file of edges, and how it is read."""
    format_is_typed = options.format in FORMATS and options.format != EDGE_FILES
    form = str(options.format) if format_is_typed else ""
    default = "" if options.nodes is None else METAEDGES
    return [typed.open_edge_file(*edge_file, form, default) for edge_file in _edge_files(options)]


def _edge_files(options: TripleOptions) -> list[tuple[Path, int | None, str | None]]:
    """(file, its part, its relation) of every file of edges."""
    path = None if options.path is None else Path(options.path)
    if options.edges:
        if path is not None and not path.is_dir():
            raise UsageError("data.edges names files: data.path is the folder that they lie in")
        files = sorted(options.edges.items())
        return [(resolve(f"edges.{name}", file, path), None, name) for name, file in files]
    return [
        (file, part, None) for file, part in located_parts(options, path, _edges_in_folder).parts
    ]


def _edges_in_folder(folder: Path) -> Files:
    """The parts in a folder, or its only file of typed edges."""
    candidates = data_files(folder)
    if parts := part_files(folder, candidates):
        return Files(set_name(folder), str(folder), parts)
    edges = [p for p in candidates if typed.claim(sample(p)) is not None]
    if len(edges) != 1:
        listed = ", ".join(p.name for p in edges or candidates) or "nothing"
        raise DataError(f"{folder}: one file of typed edges is expected: {listed}. Name it")
    return Files(set_name(folder), str(folder), ((edges[0], None),))

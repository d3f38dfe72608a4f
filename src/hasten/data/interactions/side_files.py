"""Locate item features and knowledge graphs beside interactions, in their published layouts."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hasten.config import FeatureOptions, InteractionOptions, KnowledgeOptions
from hasten.data.sources import catalog
from hasten.data.sources.archives import is_archive, unpack
from hasten.data.sources.file_names import stem
from hasten.data.sources.files import (
    data_files,
    holds_events,
    is_features,
    is_graph,
    part_files,
    resolve,
    set_name,
)
from hasten.errors import DataError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_FILE = re.compile(r"(?P<name>.+)_(feat|feats|features)\.(npy|parquet|pq)")
#: images come first: models give the first modality a part of its own
_SEEN = ("image", "images", "vision", "visual", "v", "img")


@dataclass(frozen=True)
class FeatureFiles:
    """The feature files by modality, image first, and where the interactions are.

    interactions: the options that read them; note: where they were found, if not in the folder.
    """

    files: dict[str, Path]
    interactions: FeatureOptions
    note: str | None = None


def locate_features(options: FeatureOptions) -> FeatureFiles:
    """Locate the features beside the interactions that the options name.

    Raises:
        DataError: a named file is missing, or a modality has two files.
    """
    path = None if options.path is None else Path(options.path)
    folder = path if path is not None and path.is_dir() else None
    if options.features:
        named = {n: resolve(f"features.{n}", t, path) for n, t in options.features.items()}
        return FeatureFiles(_ordered(named), options)
    if path is None or not path.exists():
        return FeatureFiles({}, options)
    whole = folder is not None or path.suffix == ".inter"
    home = folder or path.parent
    found: dict[str, Path] = {}
    stems = [f"{stem(p)}." for p in (data_files(home) if whole else [path])]
    for file in sorted(p for p in home.iterdir() if is_features(p)):
        prefix = next((s for s in stems if file.name.startswith(s)), "" if whole else None)
        match = None if prefix is None else _FILE.fullmatch(file.name.removeprefix(prefix))
        if match is None:
            continue
        modality = match["name"]
        if modality in found:
            raise DataError(
                f"{home}: both {found[modality].name} and {file.name} may be the {modality} "
                f"features: name one by --set data.features.{modality}=FILE"
            )
        found[modality] = file
    found = _ordered(found)
    if folder is None or not found or options.train is not None:
        return FeatureFiles(found, options)
    return FeatureFiles(found, *_interactions_in(folder, options))


def _interactions_in(folder: Path, options: FeatureOptions) -> tuple[FeatureOptions, str | None]:
    """The folder's own interactions, or those of its only subfolder with train and test files."""
    if data_files(folder):
        return options, None
    inner = [p for p in sorted(folder.iterdir()) if p.is_dir() and part_files(p, data_files(p))]
    if len(inner) != 1:
        return options, None
    note = (
        f"interactions taken from {inner[0].name}, the only folder in {set_name(folder)} with parts"
    )
    return options.model_copy(update={"path": str(inner[0])}), note


def _ordered(files: dict[str, Path]) -> dict[str, Path]:
    for name in files:
        if not _NAME.fullmatch(name):
            raise DataError(f"{name!r} cannot be the name of a modality: letters, digits, _ and -")
    names = sorted(files, key=lambda name: (name.lower() not in _SEEN, name))
    return {name: files[name] for name in names}


def holds_features(options: FeatureOptions) -> bool:
    """Whether there are item features: named, or beside the interactions."""
    entry = catalog.registered(options.path)
    if entry is not None:
        return bool(options.features) or entry.kind == "features"
    return bool(locate_features(options).files)


Options = TypeVar("Options", bound=InteractionOptions)
#: file names of KGAT's published data sets: the triples, and the id lists by role
_KGAT_TRIPLES = ("kg_final.txt", "kg_final.txt.gz", "kg_final.txt.zip", "kg_final.zip")
_KGAT_LISTS = {
    "user": "user_list.txt",
    "item": "item_list.txt",
    "entity": "entity_list.txt",
    "relation": "relation_list.txt",
}
_ENDINGS = (".tsv", ".csv", ".txt")


@dataclass(frozen=True)
class KnowledgeFiles:
    """The files of the knowledge graph beside the interactions. kg: None where there is none.

    links: a file of lines with item and entity; lists: role -> id list; kgat: whether the files
    are in KGAT's layout.
    """

    kg: Path | None = None
    links: Path | None = None
    lists: dict[str, Path] = field(default_factory=dict)
    kgat: bool = False

    def reading(self, options: Options) -> Options:
        """The options to read the interactions: in KGAT's layout lines ``user item item ...``."""
        if not self.kgat or options.format is not None:
            return options
        return options.model_copy(update={"format": "sequences"})


def locate_knowledge(
    options: InteractionOptions, at: str | None, kg: str | None = None, links: str | None = None
) -> KnowledgeFiles:
    """Locate the knowledge graph beside the interactions at a path, or in named files.

    options: those that read the interactions.

    Raises:
        DataError: a named file is missing.
    """
    path = None if at is None else Path(at)
    folder = path if path is not None and path.is_dir() else None
    graph = None if kg is None else resolve("kg", kg, path)
    linked = None if links is None else resolve("links", links, path)
    lists = {}
    if folder is not None:
        found = {role: folder / name for role, name in _KGAT_LISTS.items()}
        lists = {role: file for role, file in found.items() if file.is_file()}
    if graph is not None:
        return KnowledgeFiles(graph, linked, lists)
    if folder is not None:
        triples = _first_file(folder / name for name in _KGAT_TRIPLES)
        if triples or "item" in lists:
            return KnowledgeFiles(triples, linked, lists, kgat=True)
    if path is None:
        return KnowledgeFiles(links=linked)
    graph, link = _beside(path, options)
    return KnowledgeFiles() if graph is None else KnowledgeFiles(graph, linked or link)


def _beside(path: Path, options: InteractionOptions) -> tuple[Path | None, Path | None]:
    """Triples and links: X.kg, X.link beside X.inter, or X.kg.tsv, X.links.tsv beside X.csv.

    In a folder with interactions: also the only file that is named as a knowledge graph.
    """
    if path.is_dir():
        inter = [p for p in path.iterdir() if p.suffix == ".inter"]
        if len(inter) != 1:
            return _inside(path, options)
        path = inter[0]
    if path.suffix == ".inter":
        return _first_file([path.with_suffix(".kg")]), _first_file([path.with_suffix(".link")])
    kg, link = (
        _first_file(path.with_name(f"{stem(path)}.{word}{end}") for end in _ENDINGS)
        for word in ("kg", "links")
    )
    return kg, link


def _inside(folder: Path, options: InteractionOptions) -> tuple[Path | None, Path | None]:
    """``facts.csv``, ``kg.csv`` or ``triples.tsv`` and ``links.csv`` beside other data files."""
    files = data_files(folder)
    links = [p for p in files if is_graph(p) and "links" in p.name.lower()]
    graphs = [p for p in files if is_graph(p) and p not in links]
    if len(graphs) != 1 or not any(holds_events(p, options) for p in files if not is_graph(p)):
        return None, None
    return graphs[0], links[0] if len(links) == 1 else None


def _first_file(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def holds_knowledge(options: KnowledgeOptions) -> bool:
    """Whether there is a knowledge graph beside the interactions that the options name."""
    entry = catalog.registered(options.path)
    if entry is not None and entry.kind == "facts":
        return True
    path = options.path if entry is None else None
    return locate_knowledge(options, path, options.kg, options.links).kg is not None


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The file of triples itself, or unpacked from its archive while the context is open."""
    if not is_archive(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="hasten-") as scratch:
        folder = Path(scratch) / "files"
        unpack(path, folder)
        files = [p for p in folder.rglob("*") if p.is_file()]
        files = [p for p in files if not p.name.startswith(".") and "__MACOSX" not in p.parts]
        if len(files) != 1:
            raise DataError(f"{path}: one file of triples is expected, not {len(files)} files")
        yield files[0]

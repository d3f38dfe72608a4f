"""Locate a knowledge graph about items: KGAT's layout, RecBole's atomic files, named files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hasten.config import InteractionOptions, KnowledgeOptions
from hasten.data.sources import catalogue
from hasten.data.sources.archives import is_archive, unpack
from hasten.data.sources.files import resolve
from hasten.errors import DataError

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

    lists: role -> id list, of KGAT's layout; links: a file of lines with item and entity.
    """

    layout: str
    kg: Path | None = None
    links: Path | None = None
    lists: dict[str, Path] = field(default_factory=dict)

    def reading(self, options: Options) -> Options:
        """The options to read the interactions: in KGAT's layout lines ``user item item ...``."""
        if self.layout != "kgat" or options.format is not None:
            return options
        return options.model_copy(update={"format": "sequences"})


def locate_knowledge(
    at: str | None, kg: str | None = None, links: str | None = None
) -> KnowledgeFiles:
    """Locate the knowledge graph beside the interactions at a path, or in named files.

    Raises:
        DataError: a named file is missing.
    """
    path = None if at is None else Path(at)
    folder = path if path is not None and path.is_dir() else None
    graph = None if kg is None else resolve("kg", kg, folder)
    linked = None if links is None else resolve("links", links, folder)
    if graph is not None:
        return KnowledgeFiles("named files", graph, linked, _lists(folder))
    if folder is not None:
        found = [folder / name for name in _KGAT_TRIPLES if (folder / name).is_file()]
        lists = _lists(folder)
        if found or "item" in lists:
            return KnowledgeFiles("kgat", found[0] if found else None, linked, lists)
    return _atomic(path, linked)


def _lists(folder: Path | None) -> dict[str, Path]:
    if folder is None:
        return {}
    found = {role: folder / name for role, name in _KGAT_LISTS.items()}
    return {role: path for role, path in found.items() if path.is_file()}


def _atomic(path: Path | None, links: Path | None) -> KnowledgeFiles:
    """RecBole: X.kg and X.link beside X.inter."""
    if path is None:
        return KnowledgeFiles("none", links=links)
    if path.is_file() and path.suffix != ".inter":
        return _beside(path, links)
    inter = [path] if path.is_file() else []
    if path.is_dir():
        inter = sorted(p for p in path.iterdir() if p.suffix == ".inter")
    if len(inter) != 1:
        return KnowledgeFiles("none")
    kg, link = inter[0].with_suffix(".kg"), inter[0].with_suffix(".link")
    if not kg.is_file():
        return KnowledgeFiles("none")
    return KnowledgeFiles("recbole", kg, links or (link if link.is_file() else None))


def _beside(path: Path, links: Path | None) -> KnowledgeFiles:
    """X.kg.tsv and X.links.tsv (or .csv, .txt) beside X.csv."""
    stem = path.name.removesuffix(".gz")
    stem = stem.removesuffix(Path(stem).suffix)
    found: dict[str, list[Path]] = {}
    for word in ("kg", "links"):
        names = [path.with_name(f"{stem}.{word}{end}") for end in _ENDINGS]
        found[word] = [name for name in names if name.is_file()]
    if not found["kg"]:
        return KnowledgeFiles("none")
    return KnowledgeFiles("beside", found["kg"][0], links or next(iter(found["links"]), None))


def holds_knowledge(options: KnowledgeOptions) -> bool:
    """Whether there is a knowledge graph beside the interactions that the options name."""
    entry = catalogue.registered(options.path)
    if entry is not None and entry.kind == "facts":
        return True
    path = options.path if entry is None else None
    return locate_knowledge(path, options.kg, options.links).kg is not None


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

"""Load interactions with the knowledge graph about their items."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hasten.config import DataOptions, KnowledgeOptions
from hasten.data.columns import text
from hasten.data.columns.text import file_digest
from hasten.data.interactions.attach_knowledge import attach_knowledge
from hasten.data.interactions.id_lists import add_id_lists, read_links, read_list
from hasten.data.interactions.load import load_unordered
from hasten.data.interactions.side_files import locate_knowledge, unpacked
from hasten.data.readers.arrow import open_memory
from hasten.data.readers.columns import TRIPLE_ROLES, find_roles
from hasten.data.readers.recbole import atomic_header
from hasten.data.readers.triples import read_triples
from hasten.data.sources import catalogue
from hasten.data.sources.catalogue import RemoteFolder
from hasten.data.sources.fetch import fetched_options
from hasten.data.tables import Dataset
from hasten.errors import DataError


def load_knowledge(options: KnowledgeOptions, seed: int, table: object | None = None) -> Dataset:
    """Load interactions (or take a table of them) with the knowledge graph about their items.

    Raises:
        DataError: what is wrong, with file, line and text.
    """
    entry = None if table is not None else catalogue.registered(options.path)
    if isinstance(entry, RemoteFolder):
        return replace(load_knowledge(fetched_options(entry, options), seed), name=entry.name)
    path = None if entry is not None else options.path
    files = locate_knowledge(options, path, options.kg, options.links)
    options = files.reading(options)
    dataset = load_unordered(options, seed, table)
    listed = {} if table is not None else files.lists
    lists = {role: read_list(path) for role, path in listed.items()}
    dataset = add_id_lists(dataset, lists, options)
    if files.kg is not None:
        with unpacked(files.kg) as path_of_triples:
            typed = DataOptions(ids=options.ids, columns=typed_columns(path_of_triples))
            columns = read_triples(path_of_triples, typed)
        dataset = _with_source(dataset, files.kg, files.links)
    elif isinstance(entry, catalogue.Sample) and entry.kind == "facts":
        facts, name = entry.make().facts, f"{entry.name} facts"
        columns = open_memory(facts, DataOptions(), name, TRIPLE_ROLES).parsed()
    else:
        raise DataError(
            f"{dataset.source.path or dataset.name}: interactions, but no knowledge graph about "
            "the items: kg_final.txt in the folder, X.kg beside X.inter, or --set data.kg=FILE"
        )
    links = None if files.links is None else read_links(files.links)
    return attach_knowledge(dataset, columns, links, lists)


def _with_source(dataset: Dataset, *paths: Path | None) -> Dataset:
    """The dataset with the files of the knowledge graph in its source."""
    files = [path for path in paths if path is not None]
    notes = [note for note in dataset.source.notes if not note.startswith("files not used")]
    source = replace(dataset.source, notes=(*notes, f"knowledge graph from {files[0].name}"))
    return replace(dataset, source=source.plus(files=map(file_digest, files)))


def typed_columns(path: Path) -> dict[str, str]:
    """The columns of an atomic file by their whole headers, e.g. head_id:token; {} for others."""
    lines = text.sample(path).texts
    typed = atomic_header(lines[0], "\t") if lines else None
    if typed is None:
        return {}
    roles = find_roles(str(path), [name for name, _ in typed], {}, TRIPLE_ROLES)
    if isinstance(roles, str):
        raise DataError(f"{path}: {roles}")
    cells = [cell.strip() for cell in lines[0].split("\t")]
    return {role: cells[place] for role, place in roles.items()}

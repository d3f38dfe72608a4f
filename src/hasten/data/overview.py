"""Describe data for ``hasten data inspect``: formats, contents, and the options that read them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hasten.arrays import Int64
from hasten.config import AnyDataOptions, DataOptions, InteractionOptions
from hasten.data.columns.text import sample
from hasten.data.columns.times import show
from hasten.data.detect import holds_triples, load_any
from hasten.data.graph.files import located
from hasten.data.graph.load_typed import holds_typed, typed_files
from hasten.data.graph.node_types import NodeTypes
from hasten.data.interactions.feature_files import holds_features, locate_features
from hasten.data.interactions.knowledge_files import holds_knowledge, locate_knowledge, unpacked
from hasten.data.interactions.load_knowledge import typed_columns
from hasten.data.readers import Claim, recognize, triples
from hasten.data.readers.features import open_features
from hasten.data.sources.files import Files, locate
from hasten.data.tables import PART_NAMES, Dataset, KnowledgeGraph

_QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
_SHOWN = 5
_WORDS = {"\t": "tab", " ": "blank"}


@dataclass(frozen=True)
class Overview:
    """An inspected data set.

    files: one dict a file (file, part, format, reason, separator, columns, first_lines).
    spread: "events per user" and the like -> quantiles.
    settings: the ``data`` part of a configuration that reads the same without guessing.
    """

    name: str
    path: str | None
    files: list[dict[str, Any]]
    counts: dict[str, Any]
    spread: dict[str, dict[str, int]]
    ratings: dict[str, float] | None
    times: dict[str, str] | None
    split: str
    notes: list[str]
    settings: dict[str, Any]

    @property
    def options(self) -> list[str]:
        """The settings as options of the command line."""
        said = []
        for key, value in self.settings.items():
            if isinstance(value, dict):
                said += [f"--set data.{key}.{k}={v}" for k, v in value.items()]
            elif key != "path":
                said.append(f"--set data.{key}={value}")
        return said

    def to_json(self) -> dict[str, Any]:
        flat = {what.replace(" ", "_"): quantiles for what, quantiles in self.spread.items()}
        found = {**asdict(self), **flat, "options": self.options}
        del found["spread"]
        return found


def inspect(options: AnyDataOptions, seed: int = 0) -> Overview:
    """Recognize, read, check and describe the data.

    Raises:
        DataError: the data cannot be used; with file, line and text.
    """
    files, found = _describe_files(options)
    dataset = load_any(options, seed)
    return Overview(
        name=dataset.name,
        path=dataset.source.path,
        files=files,
        counts=dataset.source.counts,
        spread=_spread_of_graph(dataset)
        if isinstance(dataset, KnowledgeGraph)
        else _spread_of_interactions(dataset),
        ratings=None if isinstance(dataset, KnowledgeGraph) else _ratings(dataset),
        times=None if isinstance(dataset, KnowledgeGraph) else _times(dataset),
        split=dataset.split,
        notes=list(dataset.source.notes),
        settings=options.model_dump(exclude_defaults=True) | found,
    )


def _describe_files(options: AnyDataOptions) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the files of the data are, and the options that read the same without guessing."""
    there = options.path is None or Path(options.path).exists()
    if options.format != triples.NAME and holds_knowledge(options):
        return (_files_with_knowledge(options) if there else []), {}
    if options.format != triples.NAME and holds_features(options):
        return (_files_with_features(options) if there else []), {}
    if holds_triples(options):
        return _files_of_graph(options) if there else ([], {})
    if not there:
        return [], {}
    files = locate(options)
    guesses = [(path, part, *_guess(path, options)) for path, part in files.parts]
    settings = _settings(files, [(form, claim) for _, _, form, claim in guesses])
    return [_describe(*guess) for guess in guesses], settings


def _files_of_graph(options: AnyDataOptions) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The files of triples or typed edges."""
    if holds_typed(options):
        files = [_describe(*found) for found in typed_files(options)]
        forms = {str(file["format"]) for file in files}
        return files, {"format": forms.pop() if len(forms) == 1 else None}
    files = []
    with located(options) as place:
        for path, part in place.triples.parts:
            claim = triples.claim(sample(path), options, named=True)
            if isinstance(claim, Claim):
                described = _describe(path, part, triples.NAME, claim)
                if place.files:  # of an archive
                    described["file"] = f"{place.triples.path}/{path.name}"
                files.append(described)
    return files, {"format": triples.NAME}


def _files_with_knowledge(options: AnyDataOptions) -> list[dict[str, Any]]:
    """The files of interactions, and that of the knowledge graph."""
    found = locate_knowledge(options.path, options.kg, options.links)
    files = _files_of_interactions(found.reading(options))
    if found.kg is not None:
        with unpacked(found.kg) as path:
            claim = triples.claim(sample(path), DataOptions(columns=typed_columns(path)), True)
            if isinstance(claim, Claim):
                files.append({**_describe(path, None, "facts", claim), "file": str(found.kg)})
    return files


def _files_with_features(options: AnyDataOptions) -> list[dict[str, Any]]:
    """The files of interactions, and those of the features."""
    located_features = locate_features(options)
    files = _files_of_interactions(located_features.interactions)
    for name, path in located_features.files.items():
        found = open_features(path)
        rows, width = found.values.shape
        whose = "row i is item i" if found.items is None else "items by name"
        reason = f"{name}: {rows:,} x {width:,} {found.values.dtype}, {whose}"
        said = {"file": str(path), "part": None, "format": "features", "reason": reason}
        files.append({**said, "first_lines": []})
    return files


def _files_of_interactions(options: InteractionOptions) -> list[dict[str, Any]]:
    return [_describe(path, part, *_guess(path, options)) for path, part in locate(options).parts]


def _spread_of_interactions(dataset: Dataset) -> dict[str, dict[str, int]]:
    spread = {
        "events per user": _quantiles(dataset.interactions.user),
        "events per item": _quantiles(dataset.interactions.item),
    }
    if dataset.facts is not None:
        known = dataset.facts.triples
        spread["facts per entity"] = _quantiles(np.concatenate([known.head, known.tail]))
        spread["facts per relation"] = _quantiles(known.relation)
    return spread


def _spread_of_graph(graph: KnowledgeGraph) -> dict[str, dict[str, int]]:
    ends = np.concatenate([graph.triples.head, graph.triples.tail])
    spread = {
        "triples per entity": _quantiles(ends),
        "triples per relation": _quantiles(graph.triples.relation),
    }
    if graph.typed:
        types = NodeTypes.of(graph)
        degree = np.bincount(ends, minlength=len(graph.entities))
        for name, start, stop in zip(types.names, types.offsets, types.offsets[1:], strict=False):
            spread[f"edges per {name}"] = _spread(degree[start:stop])
    return spread


def _guess(path: Path, options: InteractionOptions) -> tuple[str, Claim]:
    reader, _, claim = recognize(path, options)
    return reader.name, claim


def _describe(path: Path, part: int | None, form: str, claim: Claim) -> dict[str, Any]:
    return {
        "file": str(path),
        "part": None if part is None else PART_NAMES[part],
        "format": form,
        "reason": claim.reason,
        **claim.details,
        "first_lines": [] if form == "parquet" else _first_lines(path),
    }


def _first_lines(path: Path) -> list[str]:
    from hasten.data.columns.text import lines_of  # noqa: PLC0415

    return [line[:200] for _, line in islice(lines_of(path), _SHOWN)]


def _settings(place: Files, guesses: list[tuple[str, Claim]]) -> dict[str, Any]:
    """What was found out, as options; only what all files agree on."""
    settings: dict[str, Any] = {}
    if len(place.parts) == 1:
        settings["path"] = str(place.parts[0][0])
    else:
        settings |= {PART_NAMES[part]: str(path) for path, part in place.parts if part is not None}
    if place.times is not None:
        settings["times"] = str(place.times)
    if place.names is not None:
        settings["names"] = str(place.names)
    formats = {form for form, _ in guesses}
    if len(formats) == 1:
        settings["format"] = formats.pop()
        details = guesses[0][1].details
        if all(claim.details == details for _, claim in guesses):
            if "separator" in details:
                settings["separator"] = _WORDS.get(details["separator"], details["separator"])
            if "columns" in details:
                settings["columns"] = dict(details["columns"])
    return settings


def _quantiles(codes: Int64) -> dict[str, int]:
    return _spread(np.bincount(codes))


def _spread(counts: Int64) -> dict[str, int]:
    values = np.quantile(counts, list(_QUANTILES.values()), method="nearest")
    return {name: int(value) for name, value in zip(_QUANTILES, values, strict=True)}


def _ratings(dataset: Dataset) -> dict[str, float] | None:
    rating = dataset.interactions.rating
    if rating is None:
        return None
    return {
        "min": float(rating.min()),
        "mean": float(rating.mean(dtype=np.float64)),
        "max": float(rating.max()),
    }


def _times(dataset: Dataset) -> dict[str, str] | None:
    time = dataset.interactions.time
    if time is None:
        return None
    return {"first": show(int(time.min())), "last": show(int(time.max()))}

"""What ``hasten data inspect`` says: the format guessed, what the data hold, the options to use."""

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
from hasten.data.graph.load import load_graph
from hasten.data.graph.load_typed import holds_typed, typed_files
from hasten.data.graph.node_types import NodeTypes
from hasten.data.interactions.feature_files import holds_features, locate_features
from hasten.data.interactions.knowledge_files import holds_facts, locate_facts, unpacked
from hasten.data.interactions.load_knowledge import typed_columns
from hasten.data.readers import Claim, recognise, triples
from hasten.data.readers.features import open_features
from hasten.data.sources.files import Place, locate
from hasten.data.tables import PART_NAMES, Dataset

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
    """Recognise, read, check and describe.

    Raises:
        DataError: the data cannot be used; with file, line and text.
    """
    with_facts = options.format != triples.NAME and holds_facts(options)
    with_features = not with_facts and options.format != triples.NAME and holds_features(options)
    if not with_facts and not with_features and holds_triples(options):
        return _inspect_graph(options, seed)
    files: list[dict[str, Any]] = []
    settings = options.model_dump(exclude_defaults=True)
    if with_features:
        files = _files_of_features(options)
    elif with_facts:
        files = _files_of_facts(options)
    elif options.path is None or Path(options.path).exists():
        place = locate(options)
        guesses = [(path, part, *_guess(path, options)) for path, part in place.parts]
        files = [_describe(*guess) for guess in guesses]
        settings |= _settings(place, [(form, claim) for _, _, form, claim in guesses])
    dataset = load_any(options, seed)
    assert isinstance(dataset, Dataset)
    spread = {
        "events per user": _quantiles(dataset.interactions.user),
        "events per item": _quantiles(dataset.interactions.item),
    }
    if dataset.facts is not None:
        known = dataset.facts.triples
        spread["facts per entity"] = _quantiles(np.concatenate([known.head, known.tail]))
        spread["facts per relation"] = _quantiles(known.relation)
    return Overview(
        name=dataset.name,
        path=dataset.source.path,
        files=files,
        counts=dataset.source.counts,
        spread=spread,
        ratings=_ratings(dataset),
        times=_times(dataset),
        split=dataset.split,
        notes=list(dataset.source.notes),
        settings=settings,
    )


def _inspect_graph(options: AnyDataOptions, seed: int) -> Overview:
    """The same of a knowledge graph."""
    files: list[dict[str, Any]] = []
    settings = options.model_dump(exclude_defaults=True)
    there = options.path is None or Path(options.path).exists()
    if there and holds_typed(options):
        files = [_describe(*found) for found in typed_files(options)]
        forms = {str(file["format"]) for file in files}
        settings["format"] = forms.pop() if len(forms) == 1 else None
    elif there:
        with located(options) as place:
            for path, part in place.triples.parts:
                claim = triples.claim(sample(path), options, named=True)
                if isinstance(claim, Claim):
                    described = _describe(path, part, triples.NAME, claim)
                    if place.files:  # of an archive
                        described["file"] = f"{place.triples.path}/{path.name}"
                    files.append(described)
        settings["format"] = triples.NAME
    graph = load_graph(options, seed)
    facts = graph.triples
    ends = np.concatenate([facts.head, facts.tail])
    spread = {
        "triples per entity": _quantiles(ends),
        "triples per relation": _quantiles(facts.relation),
    }
    if graph.typed:
        types = NodeTypes.of(graph)
        degree = np.bincount(ends, minlength=len(graph.entities))
        for name, start, stop in zip(types.names, types.offsets, types.offsets[1:], strict=False):
            spread[f"edges per {name}"] = _spread(degree[start:stop])
    return Overview(
        name=graph.name,
        path=graph.source.path,
        files=files,
        counts=graph.source.counts,
        spread=spread,
        ratings=None,
        times=None,
        split=graph.split,
        notes=list(graph.source.notes),
        settings=settings,
    )


def _files_of_facts(options: AnyDataOptions) -> list[dict[str, Any]]:
    """The files of events, and that of the facts."""
    if options.path is not None and not Path(options.path).exists():
        return []
    where = locate_facts(options.path, options.kg, options.links)
    events = options
    if where.kgat and options.format is None:
        events = options.model_copy(update={"format": "sequences"})
    files = [_describe(p, part, *_guess(p, events)) for p, part in locate(events).parts]
    if where.kg is not None:
        with unpacked(where.kg) as path:
            claim = triples.claim(sample(path), DataOptions(columns=typed_columns(path)), True)
            if isinstance(claim, Claim):
                files.append({**_describe(path, None, "facts", claim), "file": str(where.kg)})
    return files


def _files_of_features(options: AnyDataOptions) -> list[dict[str, Any]]:
    """The files of events, and those of the features."""
    if options.path is not None and not Path(options.path).exists():
        return []
    where = locate_features(options)
    files = [_describe(p, part, *_guess(p, where.events)) for p, part in locate(where.events).parts]
    for name, path in where.files.items():
        found = open_features(path)
        rows, width = found.values.shape
        whose = "row i is item i" if found.items is None else "items by name"
        reason = f"{name}: {rows:,} x {width:,} {found.values.dtype}, {whose}"
        said = {"file": str(path), "part": None, "format": "features", "reason": reason}
        files.append({**said, "first_lines": []})
    return files


def _guess(path: Path, options: InteractionOptions) -> tuple[str, Claim]:
    reader, _, claim = recognise(path, options)
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


def _settings(place: Place, guesses: list[tuple[str, Claim]]) -> dict[str, Any]:
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

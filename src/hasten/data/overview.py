"""The overview of ``hasten data inspect``: format, contents, and the options that read the data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hasten.arrays import Int64
from hasten.config import AnyDataOptions, DataOptions
from hasten.data.columns.checks import FEATURE, counted
from hasten.data.columns.text import lines_of
from hasten.data.columns.times import show
from hasten.data.detect import interactions_beside, load_any, readings
from hasten.data.event_store.mapped import MappedDataset
from hasten.data.graph.files import holds_typed, located, typed_files
from hasten.data.graph.node_types import NodeTypes
from hasten.data.interactions.side_files import locate_features, locate_knowledge, unpacked
from hasten.data.mapped_datasets import MAPPED
from hasten.data.readers import Claim, recognize, triples
from hasten.data.readers.features import open_features
from hasten.data.sources import catalog
from hasten.data.sources.files import Files, locate
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, AnyDataset, Dataset, KnowledgeGraph

_QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
_SHOWN = 5
_DETAILS = ("separator", "columns", "header")
_BINARY = (".parquet", ".pq", ".npy")
_WORDS = {"\t": "tab", " ": "blank"}


@dataclass(frozen=True)
class Overview:
    """An inspected data set.

    files: one dict a file (file, part, format, reason, separator, columns, first_lines).
    spread: "events per user" and the like -> quantiles.
    settings: the ``data`` part of a configuration that reads the same without guessing.
    readings: the kinds of data that the files can be read as.
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
    readings: list[str]

    @property
    def options(self) -> list[str]:
        """The settings as options of the command line."""
        options = []
        for key, value in self.settings.items():
            if isinstance(value, tuple):
                options.append(f"--set data.{key}={','.join(map(str, value))}")
            elif isinstance(value, dict):
                options += [f"--set data.{key}.{k}={v}" for k, v in value.items()]
            elif key != "path":
                options.append(f"--set data.{key}={value}")
        return options

    def to_json(self) -> dict[str, Any]:
        flat = {what.replace(" ", "_"): quantiles for what, quantiles in self.spread.items()}
        document = {**asdict(self), **flat, "options": self.options}
        del document["spread"]
        return document


def inspect(options: AnyDataOptions, dataset: AnyDataset | None = None) -> Overview:
    """Recognize, read, check and describe the data.

    dataset: the data as a model reads them; None: read as their content says.

    Raises:
        DataError: the data cannot be used; with file, line and text.
    """
    dataset = dataset or load_any(options, 0)
    files, settings = _describe_files(options, dataset)
    ratings = times = None
    if isinstance(dataset, KnowledgeGraph):
        spread = _spread_of_graph(dataset)
    else:
        spread = _spread_of_interactions(dataset)
        mapped = isinstance(dataset, MappedDataset)
        if not mapped and (rating := dataset.interactions.rating) is not None:
            mean = float(rating.mean(dtype=np.float64))
            ratings = {"min": float(rating.min()), "mean": mean, "max": float(rating.max())}
        time = dataset.histories(TRAIN, VALID, TEST).times
        if time is not None:
            times = {"first": show(int(time.min())), "last": show(int(time.max()))}
    return Overview(
        name=dataset.name,
        path=dataset.source.path,
        files=files,
        counts=dataset.source.counts,
        spread=spread,
        ratings=ratings,
        times=times,
        split=dataset.split,
        notes=list(dataset.source.notes),
        settings=options.model_dump(exclude_defaults=True) | settings,
        readings=_readings(options, dataset),
    )


def _readings(options: AnyDataOptions, dataset: AnyDataset) -> list[str]:
    """The kinds of data that the files, or the store, can be read as."""
    if isinstance(dataset, MAPPED):
        return ["typed" if isinstance(dataset, KnowledgeGraph) else "interactions"]
    return readings(options)


def _describe_files(
    options: AnyDataOptions, dataset: AnyDataset
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the files of the data are, and the options that read the same without guessing."""
    if catalog.registered(options.path) is not None:
        return [], {}
    if isinstance(dataset, MAPPED):
        return [_origin(source) for source in dataset.manifest.sources], {}
    if isinstance(dataset, KnowledgeGraph):
        return _files_of_graph(options)
    files, settings = _files_of_interactions(options)
    if dataset.facts is None and not dataset.modalities:
        return files, settings
    if dataset.facts is not None:
        files += _file_of_facts(options)
    if dataset.modalities:
        files += [_describe_features(*each) for each in locate_features(options).files.items()]
    return files, {}


def _files_of_graph(options: AnyDataOptions) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The files of triples or typed edges."""
    if holds_typed(options):
        files = [_describe(f.path, f.part, f.form, f.claim) for f in typed_files(options)]
        forms = {str(file["format"]) for file in files}
        return files, {"format": forms.pop() if len(forms) == 1 else None}
    files = []
    with located(options) as place:
        for path, part, more in _first_of_each(place):
            _, claim = triples.recognize(path, options)
            files.append(_describe(path, part, triples.NAME, claim) | more)
            if place.archives:
                files[-1]["file"] = f"{place.path}/{path.name}"
    return files, {"format": triples.NAME}


def _files_of_interactions(options: AnyDataOptions) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    place = locate(interactions_beside(options))
    described = []
    for path, part, more in _first_of_each(place):
        reader, _, claim = recognize(path, interactions_beside(options))
        described.append(_describe(path, part, reader.name, claim) | more)
    return described, _settings(place, described)


def _first_of_each(place: Files) -> list[tuple[Path, int | None, dict[str, str]]]:
    """(file, part, more to tell) of the first file of every table or part."""
    firsts = []
    for part in dict.fromkeys(part for _, part in place.parts):
        first, *others = [path for path, own in place.parts if own == part]
        more = {"file": f"{first} and {counted(len(others), 'more file')}"} if others else {}
        firsts.append((first, part, more))
    return firsts


def _file_of_facts(options: AnyDataOptions) -> list[dict[str, Any]]:
    """The file of the knowledge graph."""
    file = locate_knowledge(options, options.path, options.kg, options.links).kg
    assert file is not None
    with unpacked(file) as path:
        _, claim = triples.recognize(path, DataOptions())
        return [{**_describe(path, None, "facts", claim), "file": str(file)}]


def _describe_features(name: str, path: Path) -> dict[str, Any]:
    """A file of item features."""
    features = open_features(path)
    rows, width = features.values.shape
    whose = "row i is item i" if features.items is None else "items by name"
    reason = f"{name}: {rows:,} x {width:,} {features.values.dtype}, {whose}"
    return _describe(path, None, "features", Claim(reason))


def _spread_of_interactions(dataset: Dataset) -> dict[str, dict[str, int]]:
    parts = (TRAIN, VALID, TEST)
    spread = {
        "events per user": _spread(dataset.lengths(*parts)),
        "events per item": _spread(dataset.item_counts(*parts)),
    }
    if dataset.facts is not None:
        known = dataset.facts.triples
        ends = np.concatenate([known.head, known.tail])
        spread["facts per entity"] = _spread(np.bincount(ends))
        spread["facts per relation"] = _spread(np.bincount(known.relation))
    return spread


def _spread_of_graph(graph: KnowledgeGraph) -> dict[str, dict[str, int]]:
    ends = np.concatenate([graph.triples.head, graph.triples.tail])
    spread = {
        "triples per entity": _spread(np.bincount(ends)),
        "triples per relation": _spread(np.bincount(graph.triples.relation)),
    }
    if graph.typed:
        types = NodeTypes.of(graph)
        degree = np.bincount(ends, minlength=len(graph.entities))
        for name, start, stop in zip(types.names, types.offsets, types.offsets[1:], strict=False):
            spread[f"edges per {name}"] = _spread(degree[start:stop])
    return spread


def _describe(path: Path, part: int | None, form: str, claim: Claim) -> dict[str, Any]:
    return {
        "file": str(path),
        "part": None if part is None else PART_NAMES[part],
        "format": form,
        "reason": claim.reason,
        **claim.details,
        "first_lines": []
        if form == "features" or path.suffix.lower() in _BINARY
        else [line[:200] for _, line in islice(lines_of(path), _SHOWN)],
    }


def _settings(place: Files, described: list[dict[str, Any]]) -> dict[str, Any]:
    """What was found out, as options; only what all files agree on."""
    settings: dict[str, Any] = {}
    first = place.parts[0][0]
    if len(place.parts) == 1 and Path(place.path) in (first, first.parent):
        settings["path"] = str(first)
    elif place.joined or len(place.parts) == 1:
        settings["path"] = place.path
    else:
        settings |= {PART_NAMES[part]: str(path) for path, part in place.parts if part is not None}
    settings |= {
        key: str(path) for key, path in (("times", place.times), ("names", place.names)) if path
    }
    one = described[0]
    if any(file["format"] != one["format"] for file in described):
        return settings
    settings["format"] = one["format"]
    if all(file.get(key) == one.get(key) for file in described for key in _DETAILS):
        if "separator" in one:
            settings["separator"] = _WORDS.get(one["separator"], one["separator"])
        if "columns" in one:
            roles = {r: n for r, n in one["columns"].items() if not r.startswith(FEATURE)}
            settings["columns"] = roles
    return settings


def _origin(source: dict[str, Any]) -> dict[str, Any]:
    """A file that the events of a store come from."""
    reason = f"{source['bytes']:,} bytes, sha256 {source['sha256'][:12]}"
    described = {"file": source["path"], "part": None, "format": "store", "first_lines": []}
    return {**described, "reason": f"prepared from {reason}"}


def _spread(counts: Int64) -> dict[str, int]:
    values = np.quantile(counts, list(_QUANTILES.values()), method="nearest")
    return {name: int(value) for name, value in zip(_QUANTILES, values, strict=True)}

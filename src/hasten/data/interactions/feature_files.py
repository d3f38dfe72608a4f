"""Locate item features: MMRec's layout, files beside the interactions, or named files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hasten.config import FeatureOptions
from hasten.data.sources import catalogue
from hasten.data.sources.files import data_files, ending, is_features, part_files, resolve, set_name
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
    if folder is not None or path.suffix == ".inter":
        home = folder or path.parent
        stems = [_stem(p) for p in data_files(home)]
        beside = sorted(p for p in home.iterdir() if is_features(p))
        found = _in_order((p, _without(stems, p.name)) for p in beside)
    else:
        stem = _stem(path)
        beside = sorted(p for p in path.parent.iterdir() if is_features(p))
        found = _in_order((p, p.name.removeprefix(stem)) for p in beside if p.name.startswith(stem))
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


def _stem(path: Path) -> str:
    """The prefix of the files that belong to a file of interactions: its stem and a dot."""
    return path.name.removesuffix(".gz").removesuffix(ending(path)) + "."


def _without(stems: Iterable[str], name: str) -> str:
    return next((name.removeprefix(stem) for stem in stems if name.startswith(stem)), name)


def _in_order(found: Iterable[tuple[Path, str]]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path, name in found:
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        modality = match["name"]
        if modality in files:
            raise DataError(
                f"{path.parent}: both {files[modality].name} and {path.name} may be the {modality} "
                f"features: name one by --set data.features.{modality}=FILE"
            )
        files[modality] = path
    return _ordered(files)


def _ordered(files: dict[str, Path]) -> dict[str, Path]:
    for name in files:
        if not _NAME.fullmatch(name):
            raise DataError(f"{name!r} cannot be the name of a modality: letters, digits, _ and -")
    names = sorted(files, key=lambda name: (name.lower() not in _SEEN, name))
    return {name: files[name] for name in names}


def holds_features(options: FeatureOptions) -> bool:
    """Whether there are item features: named, or beside the interactions."""
    entry = catalogue.registered(options.path)
    if entry is not None:
        return bool(options.features) or entry.kind == "features"
    return bool(locate_features(options).files)

"""Load interactions with one feature matrix per modality (image, text), for multimodal models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hasten.arrays import Int64
from hasten.config import FeatureOptions, PairOptions
from hasten.data.columns.checks import counted
from hasten.data.columns.text import file_digest
from hasten.data.interactions.id_lists import load_with_lists
from hasten.data.interactions.load import load_dataset
from hasten.data.interactions.side_files import holds_features, locate_features
from hasten.data.readers.features import FeatureFile, notes_on, open_features
from hasten.data.sources import catalog
from hasten.data.sources.files import set_name
from hasten.data.tables import Dataset, Modality, Vocabulary
from hasten.errors import DataError

_SHOWN = 5


def load_features(
    options: FeatureOptions, seed: int, table: object | None = None, *, required: bool = True
) -> Dataset:
    """Load interactions (or take a table of them) with the features of their items.

    required: whether missing features are an error.

    Raises:
        DataError: what is wrong, with file, row and column.
    """
    dataset, opened = load_with_feature_files(options, seed, table)
    if not opened and not required:
        return dataset
    if not opened:
        raise DataError(
            f"{dataset.source.path or dataset.name}: interactions, but no item features: "
            "image_feat.npy and text_feat.npy in the folder, X.image_feat.npy beside X.csv, or "
            "--set data.features.image=FILE (from texts alone: hasten data features TEXTS)"
        )
    return _attach(dataset, opened)


def load_with_feature_files(
    options: FeatureOptions, seed: int, table: object | None = None
) -> tuple[Dataset, dict[str, FeatureFile]]:
    """The interactions with all items that have features, and the opened files by modality."""
    entry = None if table is not None else catalog.registered(options.path)
    if table is None and entry is None:
        files = locate_features(options)
    else:  # only named files: there is no folder to look in
        files = locate_features(FeatureOptions(features=options.features))
        files = replace(files, interactions=options)
    dataset = load_dataset(files.interactions, seed, table, needs_order=False)
    if files.note is not None:
        source = replace(dataset.source.plus([files.note]), path=options.path)
        dataset = replace(dataset, name=set_name(Path(options.path or "")), source=source)
    opened = {name: open_features(path) for name, path in files.files.items()}
    if not opened and isinstance(entry, catalog.Sample) and entry.kind == "features":
        made = entry.make().features
        opened = {n: FeatureFile(Path(n), values, None, True) for n, values in made.items()}
    return (_all_items(dataset, opened) if opened else dataset), opened


def _attach(dataset: Dataset, opened: dict[str, FeatureFile]) -> Dataset:
    """The dataset with the features of its items."""
    notes: list[str] = []
    found = []
    for name, file in opened.items():
        found.append(aligned(name, file, dataset.items.labels))
        values = found[-1].values
        where = "" if file.made else f" from {file.path.name}"
        notes.append(
            f"{name} features{where}: {len(values):,} x {values.shape[1]:,} {values.dtype}"
        )
        notes += [f"{name}: {words}" for words in notes_on(values)]
    digests = (file_digest(file.path) for file in opened.values() if not file.made)
    source = dataset.source.plus(notes, digests, features={m.name: m.width for m in found})
    if source.format != "sample":
        source = replace(source, format=f"{source.format}+features")
    return replace(dataset, modalities=tuple(found), source=source)


def _all_items(dataset: Dataset, files: dict[str, FeatureFile]) -> Dataset:
    """The dataset with all items that have features; every modality must have every item."""
    numbered = {file.path.name: len(file.values) for file in files.values() if file.items is None}
    if len(set(numbered.values())) > 1:
        listed = ", ".join(f"{name} {count:,} rows" for name, count in numbered.items())
        raise DataError(f"{dataset.source.path or dataset.name}: the features disagree: {listed}")
    labels = dataset.items.labels
    known = labels
    for file in files.values():
        new = np.setdiff1d(np.arange(len(file.values)), _rows(file, known))
        if len(new):
            known = pa.concat_arrays([known, _labels(file, new, labels.type)])
    for file in files.values():
        _rows(file, known)
    more = len(known) - len(labels)
    if not more:
        return dataset
    names = dataset.items.names
    if names is not None:
        names = pa.concat_arrays([names, pa.nulls(more, names.type)])
    note = f"{counted(more, 'item')} with features and without interactions"
    source = dataset.source.plus([note], items=len(known))
    return replace(dataset, items=Vocabulary(known, names), source=source)


def _labels(file: FeatureFile, rows: Any, kind: pa.DataType) -> pa.Array:
    """The labels of the items of these rows."""
    try:
        found = pa.array(rows) if file.items is None else file.items.take(pa.array(rows))
        return found.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file.path}: items of the interactions are numbers, those of the features are not "
            f"({error})"
        ) from error


def _rows(file: FeatureFile, known: pa.Array) -> Int64:
    """The row of every item. Raises DataError for items without one."""
    rows = file.rows_of(known)
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        shown = ", ".join(repr(known[i].as_py()) for i in missing[:_SHOWN].tolist())
        more = ", ..." if len(missing) > _SHOWN else ""
        have = f"it has {len(file.values):,} rows"
        if file.items is None:
            have += f", for items 0 to {len(file.values) - 1:,}"
        raise DataError(
            f"{file.path}: no row for {counted(len(missing), 'item')} of {len(known):,}: "
            f"{shown}{more} ({have})"
        )
    return rows


def aligned(name: str, file: FeatureFile, labels: pa.Array) -> Modality:
    """The features of these items, read and checked now."""
    values = file.taken(file.rows_of(labels))
    return Modality.of(name, values, None if file.made else file.path.resolve())


def load_pairs(options: PairOptions, seed: int, table: object | None = None) -> Dataset:
    """Load interactions (or take a table of them), with all items of id lists or feature files.

    Raises:
        DataError: what is wrong, with file, line and text.
    """
    entry = None if table is not None else catalog.registered(options.path)
    if options.features or (table is None and holds_features(options)):
        return load_with_feature_files(options, seed, table)[0]
    return load_with_lists(options, seed, table, entry)[0]

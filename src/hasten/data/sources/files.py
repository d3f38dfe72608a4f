"""Locate the files that the options name: one file, one file per part, or a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.config import DataOptions, InteractionOptions
from hasten.data.columns.text import require_file
from hasten.data.readers import recognize
from hasten.data.readers.partitions import base_of, is_pattern
from hasten.data.sources.file_names import ENDINGS, ending, plain_name, stem, words
from hasten.data.sources.several_files import (
    are_numbered,
    joined_note,
    matching_files,
    numbered_with_rows,
    partitioned_files,
)
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID
from hasten.errors import DataError, UsageError

_PART_WORDS = {
    "train": TRAIN, "trn": TRAIN, "training": TRAIN,
    "valid": VALID, "val": VALID, "validation": VALID, "dev": VALID,
    "test": TEST, "tst": TEST,
}  # fmt: skip
_TIME_WORDS = frozenset(("time", "times", "timestamp", "timestamps"))
_ITEM_WORDS = frozenset(("item", "items", "seq", "sequences"))
_GRAPH_WORDS = frozenset(("kg", "facts", "triples", "links"))
_FEATURES = re.compile(r"_(feat|feats|features)\.(npy|parquet|pq)$")
_PLAIN_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Files:
    """The files of a data set. parts: (file, TRAIN, VALID or TEST; None where not given).

    entities, relations, relation_names: of triples; archives: the one that was unpacked.
    """

    name: str
    path: str
    parts: tuple[tuple[Path, int | None], ...]
    times: Path | None = None
    names: Path | None = None
    notes: tuple[str, ...] = ()
    entities: Path | None = None
    relations: Path | None = None
    relation_names: Path | None = None
    archives: tuple[dict[str, Any], ...] = ()

    @property
    def joined(self) -> bool:
        """Whether several files are one table, or one part."""
        return len({part for _, part in self.parts}) < len(self.parts)


def set_name(path: Path) -> str:
    """The name of the data at a path, usable in the name of a run folder."""
    name = path.resolve().name
    plain = _PLAIN_NAME.sub("-", name if path.is_dir() else plain_name(name)).strip("-._")[:64]
    return plain or "data"


def locate(options: InteractionOptions) -> Files:
    """The files that the options name.

    Raises:
        DataError: a file is missing, or a folder with more than one possible data file.
        UsageError: options that contradict each other.
    """
    path = None if options.path is None else Path(options.path)
    files = located_parts(options, path, lambda folder: _folder(folder, options))
    if options.times is not None:
        if len(files.parts) > 1:
            raise UsageError("data.times goes with one file of sequences, not with several files")
        files = replace(files, times=resolve("times", options.times, path))
    if options.names is not None:
        return replace(files, names=resolve("names", options.names, path))
    return _find_names(files)


def located_parts(
    options: DataOptions, path: Path | None, in_folder: Callable[[Path], Files]
) -> Files:
    """The files that data.path or data.train, data.valid and data.test name.

    in_folder: finds the files in a folder. Raises as :func:`locate` does.
    """
    if path is not None and is_pattern(path) and options.train is None:
        return _matching(path)
    if path is not None and not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if options.train is not None:
        return named_files(options, path)
    if options.valid is not None or options.test is not None:
        raise UsageError("data.valid and data.test need data.train beside them")
    if path is None:
        raise UsageError("no data are named: give a path or a registered name")
    if path.is_dir():
        return in_folder(path)
    return Files(set_name(path), str(path), ((path, None),))


def _matching(pattern: Path) -> Files:
    """The files that match a pattern: a given split if all have names of parts, else one table."""
    files, base = matching_files(pattern), base_of(pattern)
    parts = part_files(base, files)
    if len(parts) == len(files):
        return Files(set_name(base), str(pattern), parts)
    return joined_files(Files(set_name(base), str(pattern), ()), files)


def joined_files(files: Files, paths: Sequence[Path]) -> Files:
    """The files with these as one table."""
    notes = (*files.notes, joined_note(paths)) if len(paths) > 1 else files.notes
    return replace(files, parts=tuple((path, None) for path in paths), notes=notes)


def refuse_options(what: str, options: DataOptions, keys: tuple[str, ...]) -> None:
    """Raise UsageError for options about files where the data are in memory."""
    if set_keys := [f"data.{key}" for key in keys if getattr(options, key)]:
        raise UsageError(f"{', '.join(set_keys)} has no effect on {what}")


def resolve(key: str, text: str, path: Path | None) -> Path:
    """A file named by an option: an existing file, or one in the folder that data.path names."""
    direct = Path(text)
    inside = direct if path is None else path / text
    try:
        return require_file(inside if inside.is_file() and not direct.is_file() else direct)
    except DataError as error:
        raise DataError(f"data.{key}: {error}") from error


def named_files(options: DataOptions, folder: Path | None) -> Files:
    """The files that data.train, data.valid and data.test name."""
    if folder is not None and not folder.is_dir():
        raise UsageError(f"data.path names {folder} and data.train names a file: give one of them")
    texts = ((key, getattr(options, key), part) for part, key in enumerate(PART_NAMES))
    parts = [(resolve(key, text, folder), part) for key, text, part in texts if text is not None]
    if len({path.resolve() for path, _ in parts}) < len(parts):
        raise UsageError("data.train, data.valid and data.test name the same file twice")
    first = parts[0][0]
    if len(parts) == 1:
        return Files(set_name(first), str(first), ((first, None),))
    home = first.resolve().parent if folder is None else folder
    return Files(set_name(home), str(home), tuple(parts))


def _folder(folder: Path, options: InteractionOptions) -> Files:
    data_paths = [p for p in data_files(folder) if "names" not in words(p)]
    candidates = [p for p in data_paths if not is_graph(p)] or data_paths
    base = Files(set_name(folder), str(folder), ())
    if files := numbered_with_rows(candidates) or ([] if data_paths else partitioned_files(folder)):
        return joined_files(base, files)
    if parts := part_files(folder, candidates):
        return replace(base, parts=parts, notes=unused_note(data_paths, parts))
    if atomic := [p for p in candidates if p.suffix == ".inter"]:
        candidates = atomic
    if options.times is None and (pair := _with_times(candidates)):
        items, times = pair
        note = f"times taken from {times.name} (the only other file, named alike)"
        return replace(base, parts=((items, None),), times=times, notes=(note,))
    if options.times is not None:
        candidates = [p for p in candidates if p.name != Path(options.times).name]
    if len(candidates) == 1:
        notes = unused_note([p for p in data_paths if is_graph(p)], ((candidates[0], None),))
        return replace(base, parts=((candidates[0], None),), notes=notes)
    readable = [p for p in candidates if holds_events(p, options)]
    if len(readable) == 1:
        note = f"read {readable[0].name}, the only file of {folder.name} that holds events"
        return replace(base, parts=((readable[0], None),), notes=(note,))
    kept_back = [p for p in readable if {_PART_WORDS.get(w) for w in words(p)} & {VALID, TEST}]
    if len(kept_back) == 1:
        name = kept_back[0].name
        raise DataError(
            f"{folder}: {name} is there, but no training part. Add it, or have this one divided: "
            f"--set data.train={name}"
        )
    listed = ", ".join(p.name for p in readable or candidates or _visible(folder)) or "nothing"
    problem = (
        "more than one file may hold the events" if readable else "no file of events is recognized"
    )
    raise DataError(
        f"{folder}: {problem}: {listed}. Name one file, or data.train, data.valid and data.test"
    )


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))


def data_files(folder: Path) -> list[Path]:
    """The files of a folder that may hold interactions or triples, by their names."""
    files = [p for p in _visible(folder) if ending(p) in ENDINGS and not is_features(p)]
    return [p for p in files if not p.name.lower().startswith("readme")]


def is_features(path: Path) -> bool:
    """Whether a file has the name of item features: ``image_feat.npy``."""
    return path.is_file() and _FEATURES.search(path.name) is not None


def is_graph(path: Path) -> bool:
    """Whether a file has the name of a knowledge graph, or of its links: ``facts.csv``."""
    return bool(_GRAPH_WORDS & set(words(path)))


def unused_note(
    candidates: list[Path], parts: tuple[tuple[Path, int | None], ...]
) -> tuple[str, ...]:
    """The note about the files of a folder that are not read, if there are any."""
    unused = [p.name for p in candidates if p not in dict(parts)]
    return (f"files not used: {', '.join(unused)}",) if unused else ()


def part_files(folder: Path, files: list[Path]) -> tuple[tuple[Path, int], ...]:
    """The files of a given split: one train file, with a valid or a test file.

    Of several files for a part, ``train``, ``valid`` or ``test`` without further words is taken,
    or all if they are numbered: ``train-00000-of-00002.parquet``.
    """
    by_part: dict[int, list[Path]] = {TRAIN: [], VALID: [], TEST: []}
    for path in files:
        parts = {_PART_WORDS[word] for word in words(path) if word in _PART_WORDS}
        if len(parts) == 1:
            by_part[parts.pop()].append(path)
    if not by_part[TRAIN] or not (by_part[VALID] or by_part[TEST]):
        return ()
    by_part = {
        part: [p for p in paths if len(words(p)) == 1] or paths for part, paths in by_part.items()
    }
    for paths in by_part.values():
        if len(paths) > 1 and not are_numbered(paths):
            file_names = ", ".join(path.name for path in paths)
            raise DataError(
                f"{folder}: more than one file for one part: {file_names}. "
                "Name data.train, data.valid and data.test"
            )
    return tuple((path, part) for part, paths in by_part.items() for path in paths)


def _with_times(files: list[Path]) -> tuple[Path, Path] | None:
    """A file of sequences and its times: two names that differ only in the word item or time."""
    if len(files) != 2:
        return None
    timed = [p for p in files if _TIME_WORDS & set(words(p))]
    if len(timed) != 1:
        return None
    items = files[1 - files.index(timed[0])]
    item_words = [w for w in words(items) if w not in _ITEM_WORDS]
    same = item_words == [w for w in words(timed[0]) if w not in _TIME_WORDS]
    return (items, timed[0]) if same else None


def holds_events(path: Path, options: InteractionOptions) -> bool:
    """Whether a format of interactions is recognized."""
    try:
        recognize(path, options)
    except DataError:
        return False
    return True


def _find_names(files: Files) -> Files:
    """Add the file of names beside the data: X.item for X.inter, X.names.csv for X.csv."""
    if len(files.parts) != 1:
        return files
    path = files.parts[0][0]
    if path.suffix == ".inter":
        beside = path.with_suffix(".item")
    else:
        beside = path.with_name(f"{stem(path)}.names.csv")
    if not beside.is_file():
        return files
    note = f"item names taken from {beside.name}"
    return replace(files, names=beside, notes=(*files.notes, note))

"""The files that a run writes into its folder; all others belong to the user."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from hasten.atomic_write import temporary_of

CHECKPOINT_NAME = re.compile(r"epoch-(\d{4,})(?:-step-(\d{6,}))?")
_CHECKPOINT = rf"(best|final|checkpoints/{CHECKPOINT_NAME.pattern})"
#: what a copy of a run needs beside its configuration; other files are written again
COPIED = re.compile(
    r"(data|environment|metrics|plan|update)\.json|metrics\.jsonl|(train|val)\.log"
    r"|data/(users|items|interactions|entities|relations|triples|facts|left_out)\.parquet"
    r"|data/((users|items)\.arrow|offsets\.i8|item\.i4|time\.i8|manifest\.json)"
    r"|data/((entities|relations)\.arrow|(link_)?(head|tail)\.i[48]|relation\.i[48])"
    r"|data/((source|target|link|by_target|endpoints)\.i[48]|endpoint_offsets\.i8)"
    r"|data/(dataset\.json|.+_feat\.npy|features-\d+\.f[24])"
    rf"|{_CHECKPOINT}/((manifest|state)\.json|[\w.-]+\.safetensors)"
)
_FOLDERS = re.compile(rf"data|checkpoints|{_CHECKPOINT}")
#: what is replaced whole in the run folder itself, so that an interrupted write leaves traces
RECOVERED = re.compile(
    r"best|final|config\.yaml|metrics\.jsonl"
    r"|(data|environment|metrics|plan|record|trackers|update)\.json"
)


def files_below(folder: Path) -> Iterator[str]:
    """The files and the symbolic links below a folder, relative to it."""
    for root, folders, files in os.walk(folder):
        links = (name for name in folders if (Path(root) / name).is_symlink())
        for name in (*files, *links):
            yield (Path(root) / name).relative_to(folder).as_posix()


def is_own(name: str, written: Collection[str]) -> bool:
    """Whether a run that writes these files writes this one, or it is a temporary file for one."""
    return _final(name) in written


def remove_own(folder: Path, written: Collection[str]) -> None:
    """Remove the files that a run writes, and its folders where nothing else lies in them."""
    for name in list(files_below(folder)):
        if is_own(name, written):
            (folder / name).unlink()
    for root, _, _ in os.walk(folder, topdown=False):
        if _FOLDERS.fullmatch(_final(Path(root).relative_to(folder).as_posix())):
            with suppress(OSError):  # not empty
                Path(root).rmdir()


def _final(name: str) -> str:
    """The path of the file or folder that a temporary one stands for."""
    return "/".join((temporary_of(part) or (part, ""))[0] for part in name.split("/"))

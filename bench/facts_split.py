"""ml-100k with its facts in fixed parts, as RecBole's atomic files: what both sides train on.

80 %, 10 % and 10 % of each user's events, chosen by a seed of their own; no ratings, so that
nobody weighs them. Only numpy is needed, as every side's environment reads this file.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from bench.data import ROOT, data_folder

NAME = "ml-100k-facts"
PARTS = ("train", "valid", "test")
_SEED = 2026


def facts_split(build: Path = ROOT / "build" / "bench-data") -> Path:
    """The folder with X.train.inter, X.valid.inter, X.test.inter, X.kg and X.link."""
    folder = build / NAME
    if folder.exists():
        return folder
    source = data_folder() / "kgat_ml-100k"
    table = np.loadtxt(
        source / "ml-100k.inter", dtype=np.int64, skiprows=1, usecols=(0, 1), delimiter="\t"
    )
    part = parts_of(table[:, 0])
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as scratch:
        made = Path(scratch) / NAME
        made.mkdir()
        for number, name in enumerate(PARTS):
            lines = ["user_id:token\titem_id:token"]
            lines += [f"{user}\t{item}" for user, item in table[part == number].tolist()]
            (made / f"{NAME}.{name}.inter").write_text("\n".join(lines) + "\n")
        for ending in ("kg", "link"):
            shutil.copyfile(source / f"ml-100k.{ending}", made / f"{NAME}.{ending}")
        made.rename(folder)
    return folder


def parts_of(
    user: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """0, 1 or 2 for every event: a tenth of each user's events (rounded) in 1, and in 2."""
    generator = np.random.Generator(np.random.Philox(key=_SEED))
    order = np.lexsort((generator.random(len(user)), user))
    _, first, count = np.unique(user[order], return_index=True, return_counts=True)
    place = np.arange(len(user)) - np.repeat(first, count)
    tenth = np.rint(np.repeat(count, count) / 10)
    part = np.empty(len(user), np.int64)
    part[order] = np.where(place < tenth, 2, np.where(place < 2 * tenth, 1, 0))
    return part

"""The data sets of the benchmarks, read the same way for every side.

They are not part of the project: they are looked for under ``$HASTEN_TEST_DATA`` or
``../shared/data`` beside the repository. Only numpy is needed here, so that every side's
environment can read them.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Sequences:
    """Each user's items, oldest first: row u is ``items[offsets[u]:offsets[u + 1]]``.

    items: int64, from 1 to ``catalog``; 0 is left for padding. times: unix seconds of the events.
    """

    offsets: Int64
    items: Int64
    catalog: int
    times: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        return np.diff(self.offsets)


def data_folder() -> Path:
    """Where the shared data sets lie."""
    folder = Path(os.environ.get("HASTEN_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(f"the data sets are absent: no folder {folder}; set HASTEN_TEST_DATA")
    return folder


def events(name: str) -> tuple[Int64, Int64, Int64]:
    """User, item and unix time of every event of ``beauty`` or ``ml-1m``, in file order."""
    if name == "beauty":
        folder = data_folder() / "seq_beauty"
        users, items = _rows(folder / "Beauty_item_org_rank.txt")
        _, times = _rows(folder / "Beauty_time_org_rank.txt")
        return users, items, times
    if name == "ml-1m":
        path = data_folder() / "ml-1m" / "derived" / "ml-1m-positives-with-time.txt.gz"
        with gzip.open(path, "rt") as lines:
            table = np.loadtxt(lines, dtype=np.int64)
        return table[:, 0], table[:, 1], table[:, -1]
    raise SystemExit(f"unknown data set {name}: beauty or ml-1m")


def sequences(name: str) -> Sequences:
    """The same events as sequences, by time and then file order."""
    user, item, time = events(name)
    order = np.lexsort((time, user))
    user, item, time = user[order], item[order], time[order]
    labels, user = np.unique(user, return_inverse=True)
    catalog, item = np.unique(item, return_inverse=True)
    offsets = np.zeros(len(labels) + 1, np.int64)
    np.cumsum(np.bincount(user), out=offsets[1:])
    return Sequences(offsets, item + 1, len(catalog), time)


#: knowledge graphs as they come: their archives under the data folder
GRAPHS = {
    "fb15k-237": "kg_FB15k-237/FB15k-237.tar.gz",
    "umls": "kg_umls/umls.tar.gz",
    "kinship": "kg_kinship/kinship.tar.gz",
    "nations": "kg_nations/nations.tar.gz",
    "drugbank-ddi": "kg_drugbank_ddi",
}


#: events with facts about the items, as they come
FACTS = {"ml-100k": "kgat_ml-100k", "alibaba-fashion": "kgat_alibaba-fashion_partial"}


#: typed graphs: the files of edges and of nodes, or a folder of edge files
TYPED = {
    "hetionet": (
        "het_hetionet_partial/derived/hetionet-partial-edges.sif.gz",
        "het_hetionet_partial/integrate/data/nodes.tsv",
    ),
    "redda-k": ("het_redda-k",),
}


#: events with features of the items
FEATURES = {"tiktok": "mm_tiktok"}


def triples(name: str) -> tuple[tuple[Int64, Int64, Int64], int, int]:
    """Head, relation and tail of the training triples, and the numbers of entities and relations.

    Entities and relations of all three parts are numbered.
    """
    parts = []
    with tarfile.open(data_folder() / GRAPHS[name]) as archive:
        for part in ("train", "valid", "test"):
            member = archive.extractfile(f"{part}.txt")
            assert member is not None
            parts.append([line.split("\t") for line in member.read().decode().splitlines()])
    table = np.array([row for rows in parts for row in rows])
    _, ends = np.unique(np.concatenate([table[:, 0], table[:, 2]]), return_inverse=True)
    _, relation = np.unique(table[:, 1], return_inverse=True)
    count, train = len(table), len(parts[0])
    found = (ends[:train], relation[:train], ends[count : count + train])
    return found, int(ends.max()) + 1, int(relation.max()) + 1


def plain_file(name: str) -> Path:
    """A path ``hasten train`` reads: the original file, or a text copy under ``build/``."""
    if name in GRAPHS:
        return data_folder() / GRAPHS[name]
    if name in TYPED:
        return _typed(*TYPED[name])
    if name == "ml-100k-facts":
        from bench.facts_split import facts_split

        return facts_split()
    if name.startswith("tiktok-"):
        from bench.control_features import control_features

        return control_features(name)
    if name in FACTS:
        return data_folder() / FACTS[name]
    if name in FEATURES:
        return data_folder() / FEATURES[name]
    if name == "beauty":
        return data_folder() / "seq_beauty"
    path = ROOT / "build" / "bench-data" / f"{name}.csv"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        np.savetxt(
            unfinished,
            np.stack(events(name), axis=1),
            fmt="%d",
            delimiter=",",
            header="user_id,item_id,timestamp",
            comments="",
        )
        unfinished.replace(path)
    return path


def _typed(edges: str, nodes: str | None = None) -> Path:
    """A folder of edge files as it is, or a copy of the edges with their table of nodes beside."""
    if nodes is None:
        return data_folder() / edges
    folder = ROOT / "build" / "bench-data" / Path(edges).parts[0]
    for source, name in ((nodes, "nodes.tsv"), (edges, "edges.tsv.gz")):
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder / f"{name}.part"
            unfinished.write_bytes((data_folder() / source).read_bytes())
            unfinished.replace(folder / name)
    return folder / "edges.tsv.gz"


def _rows(path: Path) -> tuple[Int64, Int64]:
    """Lines ``user value value ...`` as two parallel columns."""
    user, values = [], []
    with path.open() as lines:
        for line in lines:
            first, *rest = line.split()
            user.append(np.full(len(rest), int(first), np.int64))
            values.append(np.array(rest, dtype=np.int64))
    return np.concatenate(user), np.concatenate(values)

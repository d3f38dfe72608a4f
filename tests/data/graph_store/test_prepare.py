"""A store that is prepared in bounded memory is, byte for byte, the one that is made in memory."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.config import TypedGraphOptions
from hasten.data.graph.load import load_graph
from hasten.data.graph_store.prepare import prepare_graph
from hasten.data.readers import in_blocks, separated
from hasten.data.store_folder import buckets
from hasten.errors import DataError, UsageError
from tests.data.graph_store.reference import write_in_memory

TYPES = ("drug", "gene", "disease", "a::b")
#: relation, type of the heads, type of the tails; both: also the reverse of each edge
RELATIONS = (
    ("treats", "drug", "disease", False), ("cured", "disease", "drug", True),
    ("near", "gene", "gene", True), ("acts", "gene", "gene", False), ("acts", "drug", "gene", True),
    ("like", "drug", "drug", False), ("10", "disease", "a::b", True),
)  # fmt: skip
HEADER = "relation,x_id,x_type,x_name,y_id,y_type,y_name"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So few rows at a time that every file has several blocks, groups and ranges."""
    monkeypatch.setattr(separated, "_BLOCK", 900)
    monkeypatch.setattr(in_blocks, "GROUP", 240)
    monkeypatch.setattr(in_blocks, "FEW", 9)
    monkeypatch.setattr(buckets, "BUCKET", 28)
    monkeypatch.setattr(buckets, "CHUNK", 50)


def edges(seed, count, ids=30, named=1):
    """Lines of edges with duplicates, loops, reverses and inverse relations.

    named: one node in so many has a name, 0: none.
    """
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        name, first, second, both = RELATIONS[random.integers(len(RELATIONS))]
        one, other = (ids * random.random(2) ** 2).astype(int).tolist()
        ends = [(f" {one}" if one == 3 else f"{one}", first), (str(other), second)]
        cells = [
            (*end, f"{end[1]} {end[0].strip()}" if named and int(end[0]) % named == 0 else "")
            for end in ends
        ]
        lines.append((name, *cells[0], *cells[1]))
        if both and random.random() < 0.9:
            lines.append((name, *cells[1], *cells[0]))
        if name == "treats" and random.random() < 0.9:  # a relation that is its inverse
            lines.append(("treated", *cells[1], *cells[0]))
    return [",".join(lines[i]) for i in random.permutation(len(lines))]


def write(path, lines, header=HEADER):
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


def one_file(folder, seed=0, **options):
    return {"path": write(folder / "edges.csv", edges(seed, 150)), **options}


def parts(folder, **options):
    """Parts that share triples, and whose valid and test know nodes that train does not."""
    lines = edges(1, 170)
    train, valid = lines[:150], lines[150:200]
    test = lines[200:] + train[:7] + valid[:8]
    for name, part in (("train", train), ("valid", valid + train[:9]), ("test", test)):
        write(folder / f"{name}.csv", part)
    return {"path": str(folder), "duplicates": "drop", **options}


def metaedges(folder, *, table, **options):
    random = np.random.default_rng(5)
    nodes = [f"{'abc'[i % 3]}::{i}" for i in range(30)]
    lines = []
    for _ in range(200):
        kind, i = random.integers(3), random.integers(30, size=2)
        one, other = (int(3 * (each // 3) + kind) for each in i)
        other = (other + 1) % 30 if kind == 2 else other
        lines.append(f"{nodes[one]},r{kind},{nodes[other]}")
    path = write(folder / "edges.csv", lines, "source,metaedge,target")
    if table:
        rows = [f"{node}\tname of {node}\t{node[0]}" for node in [*nodes, "a::99"]]
        write(folder / "nodes.tsv", rows, "id\tname\tkind")
    return {"path": path, **options}


def edge_files(folder):
    random = np.random.default_rng(6)
    files = {"treats": "Drug,Disease", "like": "Drug1,Drug2"}
    for name, header in files.items():
        pairs = random.integers(0, 25, (90, 2)).tolist()
        write(folder / f"{name}.csv", [f"{a},{b}" for a, b in pairs], header)
    return {"path": str(folder), "edges": {name: f"{name}.csv" for name in files}}


CASES = {
    "names": one_file,
    "some-names": lambda folder: {"path": write(folder / "e.csv", edges(8, 90, named=3))},
    "no-names": lambda folder: {"path": write(folder / "e.csv", edges(8, 90, named=0))},
    "seed": lambda folder: one_file(folder, 4, split_seed=9, ratios=(0.6, 0.1, 0.3)),
    "keep": lambda folder: one_file(folder, duplicates="keep"),
    "symmetric": lambda folder: one_file(folder, symmetric=("like",)),
    "node-types": lambda folder: one_file(folder, node_types=("drug", "gene")),
    "edge-types": lambda folder: one_file(folder, edge_types=("near", "10", "treats")),
    "parts-keep": lambda folder: parts(folder, unknown="keep"),
    "parts-drop": lambda folder: parts(folder, unknown="drop", symmetric=("like",)),
    "parts-all": lambda folder: parts(folder, unknown="drop", duplicates="keep"),
    "parts-ratio": lambda folder: parts(folder, split="ratio"),
    "ids-are-labels": lambda folder: metaedges(folder, table=False),
    "table-of-nodes": lambda folder: metaedges(folder, table=True),
    "edge-files": edge_files,
}


@pytest.mark.parametrize("case", CASES)
def test_the_store_is_that_of_the_graph_in_memory(case, tmp_path):
    (tmp_path / "data").mkdir()
    options = TypedGraphOptions(**CASES[case](tmp_path / "data"))
    reports = {}
    expected = write_in_memory(options, tmp_path / "memory")
    written = prepare_graph(
        options,
        tmp_path / "store",
        report=lambda what, done, total: reports.update({what: (done, total)}),
    )
    assert written == expected
    names = {path.name for path in (tmp_path / "memory").iterdir()}
    assert names == {path.name for path in (tmp_path / "store").iterdir()}
    for name in names:
        one, other = (tmp_path / folder / name for folder in ("memory", "store"))
        assert one.read_bytes() == other.read_bytes(), name
    assert all(done == total for done, total in reports.values()), reports
    assert len(reports) == 6


def test_the_cases_have_what_they_are_for(tmp_path):
    """Otherwise the comparison above would compare nothing."""
    folders = {case: tmp_path / case for case in CASES}
    counts, notes = {}, {}
    for case, folder in folders.items():
        folder.mkdir()
        options = TypedGraphOptions(**CASES[case](folder))
        source = load_graph(options, options.seed_for_split(0)).source
        counts[case], notes[case] = source.counts, " ".join(source.notes)
    assert all(counts[case]["duplicates"] for case in ("names", "keep", "parts-all"))
    leaks = [(c["inverse_leaks_in_test"], c["reversed_in_test"]) for c in counts.values()]
    assert any(inverse < turned for inverse, turned in leaks)
    assert all(counts[case]["inverse_leaks_in_test"] for case in ("names", "parts-keep"))
    assert all(counts["parts-keep"][f"unknown_in_{part}"] for part in ("valid", "test"))
    for both in ("train_and_valid", "train_and_test", "valid_and_test"):
        assert counts["parts-keep"][f"triples_in_{both}"], both
    assert counts["parts-drop"]["entities"] < counts["parts-keep"]["entities"]
    assert "are reverses of others and were left out" in notes["names"]
    assert "edges of other types left out" in notes["node-types"]
    assert "1 of 31 nodes have no edge" in notes["table-of-nodes"]


BAD = {
    "unknown": parts,
    "duplicates": lambda folder: one_file(folder, duplicates="error"),
    "no-relation": lambda folder: one_file(folder, symmetric=("nothing",)),
    "two-types": lambda folder: one_file(folder, symmetric=("treats",)),
    "no-type": lambda folder: one_file(folder, node_types=("drugs",)),
    "nothing-left": lambda folder: one_file(folder, node_types=("disease",)),
    "no-parts": lambda folder: one_file(folder, split="given"),
    "ratios": lambda folder: parts(folder, ratios=(0.5, 0.2, 0.3)),
    "too-few": lambda folder: {"path": write(folder / "edges.csv", edges(0, 2))},
    "empty": lambda folder: {"path": write(folder / "e.csv", ["near, ,gene,,1,gene,"] * 9)},
    "missing-word": lambda folder: {"path": write(folder / "e.csv", ["near,nan,gene,,1,gene,"])},
    "untyped": lambda folder: {
        "path": write(folder / "e.csv", ["a::1,r,a::2", "a::1,r,2"], "source,metaedge,target")
    },
    "renamed": lambda folder: {
        "path": write(folder / "e.csv", ["near,1,gene,one,2,gene,two", "near,1,gene,ONE,3,gene,"])
    },
    "renamed-elsewhere": lambda folder: {
        "train": write(folder / "a.csv", ["near,1,gene,one,2,gene,two"]),
        "valid": write(folder / "b.csv", ["near,1,gene,ONE,2,gene,two"]),
    },
    "numbers": lambda folder: one_file(folder, ids="numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_is_refused_with_the_words_of_training_from_the_file(case, tmp_path):
    options = TypedGraphOptions(**BAD[case](tmp_path))
    with pytest.raises(DataError) as expected:
        load_graph(options, options.seed_for_split(0))
    with pytest.raises(DataError) as raised:
        prepare_graph(options, tmp_path / "store")
    assert str(raised.value) == str(expected.value)
    assert not list(tmp_path.glob("*store*"))


def test_a_sample_is_not_prepared(tmp_path):
    with pytest.raises(UsageError, match="train from it by its name"):
        prepare_graph(TypedGraphOptions(path="medicine"), tmp_path / "store")

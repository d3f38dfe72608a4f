"""Knowledge graphs: layouts, dictionaries, policies, splits, what is counted, storage."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.config import AnyDataOptions, InteractionOptions, TripleOptions
from hasten.data.detect import holds_triples, load_any
from hasten.data.graph.load import load_graph
from hasten.data.interactions.load import load_dataset
from hasten.data.overview import inspect
from hasten.data.store import fingerprint, load_stored, save_dataset
from hasten.data.tables import TEST, TRAIN, KnowledgeGraph
from hasten.errors import DataError, UsageError

TRAIN_LINES = ["a\tr\tb", "b\tr\tc", "c\ts\ta", "a\ts\tc", "d\tr\ta"]
PARTS = {"train": TRAIN_LINES, "valid": ["a\tr\tc"], "test": ["d\tr\tb", "c\ts\td"]}


def write_parts(folder: Path, **changes: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, lines in {**PARTS, **changes}.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def load(path: Path | None = None, seed: int = 0, **options: object) -> KnowledgeGraph:
    return load_graph(TripleOptions(path=None if path is None else str(path), **options), seed)


def facts(graph: KnowledgeGraph, part: int | None = None) -> set[tuple[str, str, str]]:
    rows = graph.triples if part is None else graph.of(part)
    columns = (
        graph.entities.take(rows.head), graph.relations.take(rows.relation),
        graph.entities.take(rows.tail),
    )  # fmt: skip
    return set(zip(*(map(str, column.to_pylist()) for column in columns), strict=True))


EXPECTED = {tuple(line.split("\t")) for lines in PARTS.values() for line in lines}


def test_a_folder_of_parts(tmp_path):
    graph = load(write_parts(tmp_path / "set"))
    assert graph.name == "set"
    assert facts(graph) == EXPECTED
    assert facts(graph, TEST) == {("d", "r", "b"), ("c", "s", "d")}
    assert graph.split == "given parts (train, valid, test)"
    counts = graph.source.counts
    assert (counts["entities"], counts["relations"], counts["triples"]) == (4, 2, 8)


@pytest.mark.parametrize("kind", ["tar.gz", "zip", "nested.zip"])
def test_archives_as_they_come(tmp_path, kind):
    folder = write_parts(tmp_path / "plain")
    archive = tmp_path / f"set.{kind}"
    inside = "inner/" if kind.startswith("nested") else ""
    if kind == "tar.gz":
        with tarfile.open(archive, "w:gz") as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, path.name)
    else:
        with zipfile.ZipFile(archive, "w") as opened:
            for path in sorted(folder.iterdir()):
                opened.write(path, inside + path.name)
    graph = load(archive)
    assert facts(graph) == EXPECTED
    assert graph.source.path == str(archive)
    assert graph.source.files[0]["name"] == archive.name
    alone = tmp_path / "alone"
    alone.mkdir()
    archive.rename(alone / archive.name)
    assert facts(load(alone)) == EXPECTED


def test_an_archive_that_leads_outside_is_refused(tmp_path):
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("../train.txt", "a\tr\tb\n")
    with pytest.raises(DataError, match="leads outside"):
        load(archive)


def test_files_one_by_one_and_their_order_of_columns(tmp_path):
    folder = write_parts(tmp_path / "set")
    named = {name: str(folder / f"{name}.txt") for name in PARTS}
    assert facts(load(None, **named)) == EXPECTED
    for name, lines in PARTS.items():
        turned = [" ".join(np.array(line.split("\t"))[[0, 2, 1]]) for line in lines]
        (folder / f"{name}.txt").write_text("\n".join(turned))
    order = {"head": "1", "tail": "2", "relation": "3"}
    assert facts(load(folder, columns=order)) == EXPECTED


def test_headers_tables_and_parquet(tmp_path):
    rows = sorted(EXPECTED)
    columns = {
        name: [row[i] for row in rows] for i, name in enumerate(("head", "relation", "tail"))
    }
    csv = tmp_path / "facts.csv"
    lines = ["weight,object,predicate,subject"] + [f"1,{t},{r},{h}" for h, r, t in rows]
    csv.write_text("\n".join(lines))
    pq.write_table(pa.table(columns), tmp_path / "facts.parquet")
    options = {"ratios": (1.0, 0.0, 0.0)}
    assert facts(load(csv, **options)) == EXPECTED
    assert facts(load(tmp_path / "facts.parquet", **options)) == EXPECTED
    assert facts(load_graph(TripleOptions(**options), 0, columns)) == EXPECTED
    atomic = tmp_path / "facts.kg"
    header = ("head_id:token", "relation_id:token", "tail_id:token")
    atomic.write_text("\n".join("\t".join(row) for row in [header, *rows]))
    assert facts(load(atomic, **options)) == EXPECTED
    named = {"head": "object", "relation": "predicate", "tail": "subject"}
    assert ("b", "r", "a") in facts(load(csv, columns=named, **options))


def test_dictionaries_names_and_the_map_of_edges(tmp_path):
    """The layout of ROBOKOP: CURIE, predicate:N, CURIE, with node_dict.txt and rel_dict.txt."""
    folder = tmp_path / "robokop"
    folder.mkdir()
    (folder / "train.txt").write_text("CHEBI:1\tpredicate:0\tMONDO:1\nMONDO:1\tpredicate:1\tHP:1\n")
    (folder / "test.txt").write_text("CHEBI:1\tpredicate:1\tHP:1\n")
    (folder / "node_dict.txt").write_text("HP:1\t2\nCHEBI:1\t0\nMONDO:1\t1\nHP:9\t3\n")
    (folder / "rel_dict.txt").write_text("predicate:0\t0\npredicate:1\t1\n")
    (folder / "edge_map.json").write_text(
        json.dumps({"treats": "predicate:0", "has": "predicate:1"})
    )
    (folder / "names.tsv").write_text("CHEBI:1\twater\nHP:1\tthirst\n")
    graph = load(folder, names=str(folder / "names.tsv"))
    assert graph.entities.labels.to_pylist() == ["CHEBI:1", "MONDO:1", "HP:1", "HP:9"]
    assert graph.entities.names.to_pylist() == ["water", None, "thirst", None]
    assert graph.relations.names.to_pylist() == ["treats", "has"]
    assert any("edge_map.json, node_dict.txt, rel_dict.txt" in note for note in graph.source.notes)


def test_triples_of_numbers_get_their_names_from_a_dictionary(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.txt").write_text("0 0 1\n1 0 2\n")
    (folder / "test.txt").write_text("0 0 2\n")
    (folder / "node2id.json").write_text(json.dumps({"DB2": 2, "DB0": 0, "DB1": 1}))
    graph = load(folder)
    assert graph.entities.labels.to_pylist() == [0, 1, 2]
    assert graph.entities.names.to_pylist() == ["DB0", "DB1", "DB2"]


UNSEEN = ["d\tr\tb", "x\tr\tb", "a\tnew\tb"]


def test_unknown_in_test_is_an_error_with_file_and_line(tmp_path):
    folder = write_parts(tmp_path / "set", test=UNSEEN)
    with pytest.raises(DataError) as error:
        load(folder)
    message = str(error.value)
    assert "2 lines cannot be used" in message
    assert f"{folder / 'test.txt'}, line 2" in message
    assert "--set data.unknown=keep" in message


def test_unknown_in_test_is_dropped_kept_or_ranked_last(tmp_path):
    folder = write_parts(tmp_path / "set", test=UNSEEN)
    dropped, kept, last = (load(folder, unknown=u) for u in ("drop", "keep", "rank-last"))
    assert facts(dropped, TEST) == {("d", "r", "b")}
    assert len(dropped.entities) == 4
    assert len(kept.entities) == len(last.entities) == 5
    assert not kept.rank_last.any()
    assert last.rank_last.tolist() == [False] * 7 + [True] * 2
    for graph, word in ((dropped, "left out"), (kept, "untrained"), (last, "misses")):
        assert graph.source.counts["unknown_in_test"] == 2
        assert any(word in note for note in graph.source.notes)


def test_ids_that_the_dictionary_lacks(tmp_path):
    folder = write_parts(tmp_path / "set")
    (folder / "node_dict.txt").write_text("a\t0\nb\t1\nc\t2\n")
    with pytest.raises(DataError, match=r"train.txt, line 5: an entity .* the dictionary lacks"):
        load(folder)
    dropped = load(folder, unknown="drop")
    assert not any("d" in triple for triple in facts(dropped))
    assert facts(load(folder, unknown="keep")) == EXPECTED


def test_overlaps_duplicates_and_inverse_leakage_are_counted(tmp_path):
    train = [*TRAIN_LINES, "a\tr\tb", "b\tinv\ta", "c\tinv\tb", "a\tinv\td"]
    folder = write_parts(tmp_path / "set", train=train, test=["a\tr\tb", "c\tinv\td", "d\tr\tc"])
    (folder / "valid.txt").write_text("d\tinv\tc\n")
    graph = load(folder, unknown="keep")
    counts = graph.source.counts
    assert counts["duplicates"] == 1
    assert counts["triples_in_train_and_test"] == 1
    assert counts["reversed_in_test"] == 1  # (a, r, b) from (b, inv, a)
    assert counts["inverse_leaks_in_test"] == 1
    assert any("inverse leakage: 1 of 3 test triples" in note for note in graph.source.notes)
    assert len(load(folder, unknown="keep", duplicates="drop").of(TRAIN)) == len(train) - 1
    with pytest.raises(DataError, match="1 duplicate triple"):
        load(folder, unknown="keep", duplicates="error")


def test_shares_of_a_split_that_the_files_give_are_refused(tmp_path):
    folder = write_parts(tmp_path / "set", test=UNSEEN)
    with pytest.raises(DataError, match=r"data\.ratios has no effect: the files give the parts"):
        load(folder, unknown="keep", ratios=(0.9, 0.05, 0.05))
    load(folder, unknown="keep", ratios=(1, 0, 0), split="ratio")


def test_a_random_split_leaves_nothing_unseen(tmp_path):
    graph = load_graph(TripleOptions(path="families"), 3)
    entities, relations = graph.trained
    assert entities.all()
    assert relations.all()
    counts = graph.source.counts
    assert counts["valid"] == counts["test"] == round(0.1 * counts["triples"])
    again = load_graph(TripleOptions(path="families"), 3)
    other = load_graph(TripleOptions(path="families"), 4)
    assert fingerprint(graph) == fingerprint(again) != fingerprint(other)


def test_stored_and_read_again(tmp_path):
    folder = write_parts(tmp_path / "set", test=UNSEEN)
    graph = load(folder, unknown="rank-last")
    mark = save_dataset(graph, tmp_path / "stored")
    found = load_stored(tmp_path / "stored")
    assert isinstance(found, KnowledgeGraph)
    assert fingerprint(found) == mark == fingerprint(graph)
    assert facts(found) == facts(graph)
    assert found.rank_last.tolist() == graph.rank_last.tolist()
    assert found.source == graph.source
    table = pq.read_table(tmp_path / "stored" / "triples.parquet")
    tail = table["tail"].to_numpy().copy()
    tail[0] = 1 - min(1, tail[0])
    changed = table.set_column(table.column_names.index("tail"), "tail", pa.array(tail))
    pq.write_table(changed, tmp_path / "stored" / "triples.parquet")
    with pytest.raises(DataError, match="does not match its fingerprint"):
        load_stored(tmp_path / "stored")


BAD = {
    "empty": ("", "0 rows"),
    "two columns": ("a\tr\tb\na\tr\n", r"line 2: 2 columns instead of 3"),
    "four columns": ("a\tr\tb\tc\nd\tr\tb\tc\n", "4 cells a line; head relation tail are expected"),
    "an empty head": ("a\tr\tb\n\tr\tb\n", "line 2: the head id is empty"),
    "an empty relation": ("a\tr\tb\na\t \tb\n", "line 2: the relation id is empty"),
    "a missing tail": ("a\tr\tb\na\tr\tnan\n", "line 2: tail id 'nan' looks like a missing value"),
    "a NUL": ("a\tr\tb\na\0\tr\tb\n", "NUL byte at offset"),
    "a return": ("a\tr\tb\nc\tr\tb\ra\tr\tb\n", "carriage return inside line 2"),
    "one cell": ("abc\ndef\n", "fewer than three cells"),
    "the header again": (
        "head,relation,tail\na,r,b\nhead,relation,tail\n",
        "line 3.*the header again",
    ),
    "only a header": ("head,relation,tail\n", "only a header"),
    "half a quote": ('a,r,b\n"c,r,b\n', "line 2: a double quote"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_refused(tmp_path, what):
    content, message = BAD[what]
    path = tmp_path / "facts.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    path = tmp_path / "facts.tsv"
    path.write_bytes(b"a\tr\tb\n\xff\tr\tb\n")
    with pytest.raises(DataError, match="byte 0xff at offset 6, line 2"):
        load(path)
    path.write_bytes(b"\xef\xbb\xbfa\tr\tb\r\nb\tr\ta\r\n")
    assert facts(load(path, ratios=(1.0, 0.0, 0.0))) == {("a", "r", "b"), ("b", "r", "a")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\t0\na\t1\n", "line 2: the label 'a' again"),
        ("a\t0\nb\u00ad\t1\n", "line 2: the label .* cannot be printed"),
        ("a\t0\nb\t0\n", "line 2: the number '0' again"),
        ("a\t0\nb\n", "line 2: no label and number"),
        ("a\tx\nb\ty\nc\tz\n", "no number"),
        ("", "0 rows"),
        ("x\t0\ny\t1\n", "none of its 2 entries is in the data"),
    ],
)
def test_bad_dictionaries_are_refused(tmp_path, content, message):
    folder = write_parts(tmp_path / "set")
    (folder / "node_dict.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        load(folder)


def test_options_of_events_are_refused(tmp_path):
    folder = write_parts(tmp_path / "set")
    with pytest.raises(UsageError, match=r"data\.k_core has no effect on these data \(triples\)"):
        load_any(AnyDataOptions(path=str(folder), k_core=2), 0)
    with pytest.raises(UsageError, match="holds no triples"):
        load(folder, format="sequences")
    with pytest.raises(DataError, match="holds interactions, not triples"):
        load_graph(TripleOptions(path="sequences"), 0)
    with pytest.raises(DataError, match="holds triples, not interactions"):
        load_dataset(InteractionOptions(path="families"), 0)


def test_events_or_triples(tmp_path):
    folder = write_parts(tmp_path / "set")
    assert holds_triples(AnyDataOptions(path=str(folder)))
    assert holds_triples(AnyDataOptions(path="families"))
    events = tmp_path / "events.txt"
    events.write_text("1 2 1000000000\n1 3 1000000001\n1 4 1000000002\n")
    assert not holds_triples(AnyDataOptions(path=str(events)))
    assert holds_triples(AnyDataOptions(path=str(events), format="triples"))
    found = inspect(AnyDataOptions(path=str(folder)))
    assert found.spread["triples per relation"]["max"] == 5
    assert found.to_json()["triples_per_entity"]["min"] == 3
    assert found.files[0]["format"] == "triples"


def test_real_sets(shared_data):
    expected = {
        "kg_umls": (135, 46, 5216, 652, 661),
        "kg_kinship": (104, 25, 8544, 1068, 1074),
        "kg_nations": (14, 55, 1592, 199, 201),
    }
    for name, sizes in expected.items():
        counts = load(shared_data / name).source.counts
        keys = ("entities", "relations", "train", "valid", "test")
        assert tuple(counts[key] for key in keys) == sizes
    order = {"head": "1", "tail": "2", "relation": "3"}
    graph = load(shared_data / "kg_drugbank_ddi", columns=order, unknown="keep")
    assert (len(graph.entities), len(graph.relations), len(graph.triples)) == (1710, 86, 192284)
    assert graph.entities.names is not None


def test_arrays_of_triples(tmp_path):
    rng = np.random.default_rng(0)
    triples = np.unique(rng.integers([9, 2, 9], size=(60, 3)), axis=0)
    (tmp_path / "set").mkdir()
    for name, rows in zip(PARTS, np.split(triples, [40, 45]), strict=True):
        np.save(tmp_path / "set" / f"{name}.npy", rows)
    np.save(tmp_path / "all.npy", triples)
    expected = {tuple(map(str, row)) for row in triples.tolist()}
    graph = load(tmp_path / "set")
    assert facts(graph) == facts(load(tmp_path / "all.npy")) == expected
    assert graph.split == "given parts (train, valid, test)"
    for path in (tmp_path / "set", tmp_path / "all.npy"):
        found = inspect(AnyDataOptions(path=str(path)))
        assert found.readings == ["triples"]
        assert found.files[0]["first_lines"] == []
    np.save(tmp_path / "pairs.npy", triples[:, :2])
    np.save(tmp_path / "floats.npy", triples + 0.5)
    for name, says in (("pairs", "2 values of type"), ("floats", "of type float64; triples are")):
        with pytest.raises(DataError, match=says):
            load(tmp_path / f"{name}.npy")


def test_an_edge_list_with_a_separator_at_the_end_beside_a_table_of_nodes(tmp_path):
    lines = [line + "\t" for name in PARTS for line in PARTS[name]]
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "nodes.tsv").write_text("".join(f"{n}\tname of {n}\tthing\t\n" for n in "abcd"))
    (folder / "edges.tsv").write_text("\n".join(lines) + "\n")
    graph = load_any(AnyDataOptions(path=str(folder)), 0)
    assert isinstance(graph, KnowledgeGraph)
    assert facts(graph) == EXPECTED
    assert "files not used: nodes.tsv" in graph.source.notes
    header = "head\trelation\ttail\t"
    (folder / "edges.tsv").write_text("\n".join([header, *lines]) + "\n")
    again = load(folder)
    assert facts(again) == EXPECTED
    assert not any("columns not used" in note for note in again.source.notes)

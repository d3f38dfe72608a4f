# ruff: noqa: E501 - one case a line
"""Triples that cannot be used, and good ones with random damage: refused clearly, or read exactly."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hasten.config import TripleOptions
from hasten.data.graph.load import load_graph
from hasten.data.readers.columns import SYNONYMS, plain
from hasten.data.tables import KnowledgeGraph
from hasten.errors import DataError, UsageError
from tests.data.readers.test_mutations import damage

ROWS = [(f"p{i}", "knows" if i % 3 else "likes", f"p{(5 * i + 2) % 9}") for i in range(18)]
TABS = "".join("\t".join(row) + "\n" for row in ROWS)
LINES = TABS.splitlines(keepends=True)
CSV = "head,relation,tail\n" + TABS.replace("\t", ",")
NUMBERS = "".join(f"{i} {i % 3} {(5 * i + 2) % 9}\n" for i in range(18))


@dataclass(frozen=True)
class Bad:
    """Files (a name -> its bytes), what is loaded, and what the error must say."""

    name: str
    files: dict[str, bytes]
    says: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


def bad(
    name: str, content: str | bytes, *says: str, file: str = "facts.txt", **options: Any
) -> Bad:
    raw = content.encode() if isinstance(content, str) else content
    return Bad(name, {file: raw}, says, options)


def parts(name: str, *says: str, **files: str) -> Bad:
    whole = {"train": TABS, "valid": LINES[0], "test": LINES[1], **files}
    return Bad(
        name,
        {
            f"{k.replace('__', '.')}{'' if '__' in k else '.txt'}": v.encode()
            for k, v in whole.items()
        },
        says,
    )


def packed(mode: str = "gz") -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=f"w:{mode}") as opened:
        member = tarfile.TarInfo("train.txt")
        member.size = len(TABS) * 99
        opened.addfile(member, io.BytesIO((TABS * 99).encode()))
    return sink.getvalue()


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def archive(**members: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as opened:
        for name, content in members.items():
            opened.writestr(name.replace("__", "."), content)
    return sink.getvalue()


def linked() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as opened:
        link = tarfile.TarInfo("train.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(link)
    return sink.getvalue()


CORPUS = [
    # 20: nothing in it
    bad("blank lines only", "\n \n\n", "0 rows"),
    bad("an empty gz", gzip.compress(b""), "0 rows", file="facts.tsv.gz"),
    bad(
        "an empty Parquet file",
        parquet(
            head=pa.array([], "string"),
            relation=pa.array([], "string"),
            tail=pa.array([], "string"),
        ),
        "0 rows",
        file="facts.parquet",
    ),
    parts("an empty train part", "train.txt", "0 rows", train=""),
    bad("an archive without files", archive(), "facts.zip", file="facts.zip"),
    # 21: columns
    bad(
        "a row too short in the middle",
        TABS + "a\tb\n" + TABS,
        "line 19: 2 columns instead of 3",
        "'a\\tb'",
    ),
    bad("a row too long", CSV + "a,b,c,d\n", "line 20: 4 columns instead of 3", file="facts.csv"),
    bad("seven of them", TABS + "a\tb\n" * 7, "7 lines cannot be used", "line 23", "2 more"),
    bad(
        "a header without a tail",
        "head,relation,weight\na,r,1\n",
        "no column is recognized as the tail",
        "data.columns.tail=NAME",
        file="facts.csv",
        columns={"head": "head", "relation": "relation"},
    ),
    bad(
        "a header with two heads",
        "head,subject,relation,tail\na,a,r,b\n",
        "'head' or 'subject'",
        file="facts.csv",
    ),
    bad(
        "a column twice",
        "head,relation,tail,tail\na,r,b,b\n",
        "names 'tail' twice",
        file="facts.csv",
    ),
    bad("a column that is not there", CSV, "'objct'", file="facts.csv", columns={"tail": "objct"}),
    bad(
        "a role that does not exist",
        CSV,
        "data.columns.tial",
        "did you mean 'tail'",
        file="facts.csv",
        columns={"tial": "tail"},
    ),
    bad(
        "a place that is not there", TABS, "4", columns={"head": "1", "relation": "2", "tail": "4"}
    ),
    bad(
        "one place twice", TABS, "data.columns", columns={"head": "1", "relation": "1", "tail": "3"}
    ),
    # 22: ids
    bad("a negative fraction among numbers", NUMBERS + "-1.5 0 2\n", "line 19", "'-1.5'"),
    bad("a fraction among numbers", NUMBERS * 9 + "1.5 0 2\n", "'1.5'", ids="numbers"),
    bad("a huge number", NUMBERS + f"{2**64} 0 2\n", str(2**64), ids="numbers"),
    bad(
        "a label among many numbers",
        "".join(f"{i} 0 {i + 1}\n" for i in range(400)) + "x 0 2\n",
        "line 401",
        "'x'",
    ),
    bad(
        "fraction in Parquet",
        parquet(head=[1, 2.5], relation=[0, 0], tail=[1, 1]),
        "row 2",
        "2.5",
        file="facts.parquet",
    ),
    bad(
        "null in Parquet",
        parquet(head=["a", None], relation=["r", "r"], tail=["b", "c"]),
        "row 2",
        "head",
        file="facts.parquet",
    ),
    bad(
        "lists in Parquet",
        parquet(head=[["a"], ["b"]], relation=["r", "r"], tail=["b", "c"]),
        "head",
        file="facts.parquet",
    ),
    # 23: text
    bad(
        "another encoding",
        "p1\tknows\tcaf\xe9\n".encode("latin-1"),
        "byte 0xe9 at offset 12, line 1",
    ),
    bad("UTF-16", TABS.encode("utf-16"), "facts.txt"),
    bad("NUL", TABS.encode() + b"a\tr\tb\0\n", "NUL byte at offset"),
    bad(
        "a quote that does not end",
        'head,relation,tail\na,"r,b\n',
        "line 2",
        "double quote",
        file="facts.csv",
    ),
    bad(
        "a control character",
        "a\tr\tb\nc\tr\x07\td\n",
        "control character 0x07 at offset 9, line 2",
    ),
    bad("no gz at all", b"head,relation,tail\n", "facts.csv.gz", file="facts.csv.gz"),
    bad("half a gz", gzip.compress(TABS.encode())[:-9], "facts.tsv.gz", file="facts.tsv.gz"),
    bad(
        "half a Parquet file",
        parquet(head=["a"], relation=["r"], tail=["b"])[:-9],
        "damaged Parquet",
        file="facts.parquet",
    ),
    bad("half an archive", archive(train__txt=TABS.encode())[:-30], "facts.zip", file="facts.zip"),
    bad("half a tar.gz", packed()[:-60], "facts.tar.gz", "damaged", file="facts.tar.gz"),
    bad("a tar.xz without its beginning", packed("xz")[:24], "facts.tar.xz", file="facts.tar.xz"),
    bad("a link in an archive", linked(), "train.txt", file="facts.tar.gz"),
    # 24, 25, 26: policies
    bad(
        "duplicates where they are an error",
        TABS + LINES[0],
        "1 duplicate triple",
        duplicates="error",
    ),
    parts(
        "an unknown entity in valid",
        "valid.txt, line 1",
        "stands in no training triple",
        "data.unknown=keep",
        valid="zz\tknows\tp1\n",
    ),
    parts(
        "an unknown relation in test",
        "test.txt, line 2",
        "stands in no training triple",
        test="p1\tknows\tp2\np1\thates\tp2\n",
    ),
    parts("no training part", "train", train="", valid=TABS, test=TABS),
    parts(
        "two dictionaries",
        "choose with --set data.entities=FILE",
        node_dict__txt="p1\t0\n",
        entity2id__txt="p1\t0\n",
    ),
    parts(
        "a map of edges that is a list",
        "edge_map.json",
        "a JSON object is expected",
        edge_map__json="[1, 2]",
    ),
    parts(
        "a map of edges that is broken",
        "edge_map.json",
        "cannot be read as JSON",
        edge_map__json="{",
    ),
    parts(
        "a map of other edges",
        "none of its 1 entries is a relation",
        edge_map__json=json.dumps({"a": "b"}),
    ),
    parts("a dictionary of nested values", "node2id.json", node2id__json=json.dumps({"p1": [0]})),
    parts(
        "two files of names",
        "choose with --set data.names=FILE",
        a__names__csv="p1,x\n",
        b__names__csv="p1,x\n",
    ),
]


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_what_cannot_be_used_is_refused(case, tmp_path):
    for name, content in case.files.items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path / next(iter(case.files)) if len(case.files) == 1 else tmp_path
    with pytest.raises((DataError, UsageError)) as error:
        load_graph(TripleOptions(path=str(path), **case.options), 0)
    message = str(error.value)
    for words in case.says:
        assert words in message, message
    assert {p.name for p in tmp_path.iterdir()} == set(case.files)


def load_damaged(
    name: str, content: bytes, others: dict[str, bytes] | None = None
) -> KnowledgeGraph | None:
    """The graph of a damaged file, or None where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / name
        place.write_bytes(content)
        for other, text in (others or {}).items():
            (Path(folder) / other).write_bytes(text)
        path = place if others is None else Path(folder)
        try:
            graph = load_graph(TripleOptions(path=str(path), unknown="keep"), 0)
        except (DataError, UsageError):
            return None
    check_whole(graph)
    return graph


def check_whole(graph: KnowledgeGraph) -> None:
    """What holds for every graph."""
    facts = graph.triples
    assert len(facts) == len(graph.part) == len(graph.rank_last) > 0
    assert (graph.part == 0).any()
    assert (np.diff(graph.part) >= 0).all()
    for vocabulary, used in (
        (graph.entities, [facts.head, facts.tail]),
        (graph.relations, [facts.relation]),
    ):
        ids = np.concatenate(used)
        assert 0 <= ids.min() <= ids.max() < len(vocabulary)
        labels = vocabulary.labels.to_pylist()
        assert len(set(labels)) == len(labels)
        if vocabulary.numeric:
            assert all(-(2**63) <= label < 2**63 for label in labels)
        else:
            assert all(text and text == text.strip() and text.isprintable() for text in labels)


def facts_of(graph: KnowledgeGraph) -> Counter[tuple[str, ...]]:
    columns = (
        graph.entities.take(graph.triples.head), graph.relations.take(graph.triples.relation),
        graph.entities.take(graph.triples.tail),
    )  # fmt: skip
    return Counter(
        tuple(map(str, row)) for row in zip(*(c.to_pylist() for c in columns), strict=True)
    )


def plain_facts(content: bytes, separator: str) -> Counter[tuple[str, ...]]:
    """The same by the plainest reading."""
    text = content.decode().removeprefix("\ufeff").replace("\r\n", "\n")
    rows = [
        [cell.strip() for cell in line.split(separator)]
        for line in text.split("\n")
        if line.strip()
    ]
    if separator == " ":
        rows = [line.split() for line in text.split("\n") if line.strip()]
    order = [0, 1, 2]
    if all(
        any(plain(cell) in SYNONYMS[role] for cell in rows[0])
        for role in ("head", "relation", "tail")
    ):
        header = rows.pop(0)
        order = [
            next(i for i, cell in enumerate(header) if plain(cell) in SYNONYMS[role])
            for role in ("head", "relation", "tail")
        ]
    return Counter(tuple(row[i] for i in order) for row in rows)


BASES = {
    "tabs": ("facts.tsv", TABS.encode(), "\t"),
    "csv": ("facts.csv", CSV.encode(), ","),
    "crlf": ("facts.csv", b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode(), ","),
    "numbers": ("facts.txt", NUMBERS.encode(), " "),
}


@pytest.mark.parametrize("kind", BASES)
def test_the_undamaged_files_load(kind):
    name, content, separator = BASES[kind]
    graph = load_damaged(name, content)
    assert graph is not None
    assert facts_of(graph) == plain_facts(content, separator)


def run(kind: str, data: st.DataObject) -> None:
    name, good, separator = BASES[kind]
    content = data.draw(damage(good))
    assume(content != good)
    graph = load_damaged(name, content)
    if graph is None or b'"' in content or separator.encode() not in content.split(b"\n")[0]:
        return
    found, expected = facts_of(graph), plain_facts(content, separator)
    if graph.entities.numeric or graph.relations.numeric:
        expected = Counter({tuple(_number(cell) for cell in row): n for row, n in expected.items()})
        found = Counter({tuple(_number(cell) for cell in row): n for row, n in found.items()})
    assert found == expected


def _number(cell: str) -> str:
    """007 and 7.0 are 7 where ids are numbers."""
    try:
        return str(int(float(cell))) if float(cell) == int(float(cell)) else cell
    except (ValueError, OverflowError):
        return cell


quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
long = settings(max_examples=1250, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", BASES)
@quick
@given(data=st.data())
def test_damage_is_refused_or_harmless(kind, data):
    run(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BASES)
@long
@given(data=st.data())
def test_more_damage_is_refused_or_harmless(kind, data):
    run(kind, data)


_NODES = "".join(f"p{i}\t{i}\n" for i in range(18))
_EDGES = json.dumps({"to know": "knows", "to like": "likes"})


@quick
@given(data=st.data())
def test_damaged_dictionaries_are_refused_or_harmless(data):
    """The triples are never touched by what lies beside them."""
    nodes, edges = data.draw(damage(_NODES.encode())), data.draw(damage(_EDGES.encode()))
    damaged = {"node_dict.txt": nodes, "edge_map.json": edges}
    graph = load_damaged("train.txt", TABS.encode(), damaged)
    if graph is not None:
        assert facts_of(graph) == Counter(ROWS)

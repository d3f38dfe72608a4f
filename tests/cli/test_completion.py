"""A knowledge graph on the command line: made, inspected, trained, judged by group, asked."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.cli.main import main
from tests.cli.test_end_to_end import ask

NODES = 12
#: a circle: ``next`` leads one step on, ``back`` one step back
NEXT = [(f"n{i}", "next", f"n{(i + 1) % NODES}") for i in range(NODES)]
BACK = [(tail, "back", head) for head, _, tail in NEXT]
TRAIN = [*NEXT, *BACK[2:]]
LEARN = ["--epochs", "60", "--lr", "0.02", "--batch-size", "16", "--set", "model.width=32"]
QUICK = ["--threads", "1", "--quiet", "--eval-every", "60", "--set", "model.dropout=0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    data = folder / "circle"
    data.mkdir()
    for name, rows in (("train", TRAIN), ("valid", BACK[:1]), ("test", BACK[1:2])):
        (data / f"{name}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    (data / "edge_map.json").write_text(json.dumps({"follows": "next", "precedes": "back"}))
    (folder / "events.csv").write_text(
        "user_id,item_id\n" + "".join(f"{u},{i}\n" for u in range(4) for i in range(u, u + 4))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "complex", "circle", *LEARN, *QUICK, "--out", "run"]) == 0
        assert (
            main(
                [
                    "train",
                    "pop",
                    "events.csv",
                    "--set",
                    "data.split=leave-last-two-out",
                    "--out",
                    "popular",
                    "--quiet",
                ]
            )
            == 0
        )
    return folder


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def answers(found: dict[str, Any], column: str) -> list[str]:
    return [row[column] for row in found["predictions"]]


def test_predict_a_tail_with_known_triples_left_out_or_marked(here, capfd):
    found = ask(capfd, "predict", "run", "--head", "n3", "--relation", "next", "--topk", "3")
    assert {"run", "model", "checkpoint", "known", "questions", "rows"} <= set(found)
    assert (found["known"], found["questions"], found["rows"]) == ("filter", 1, 3)
    assert "n4" not in answers(found, "tail")
    assert not any(answers(found, "known"))
    assert answers(found, "rank") == [1, 2, 3]
    scores = answers(found, "score")
    assert scores == sorted(scores, reverse=True)
    marked = ask(
        capfd, "predict", "run", "--head", "n3", "--relation", "next", "--topk", "1", "--known",
        "mark",
    )  # fmt: skip
    assert answers(marked, "tail") == ["n4"]
    assert answers(marked, "known") == [True]
    assert answers(marked, "relation_name") == ["follows"]
    # a triple of the test part is known too, of whatever part
    for row in BACK[:2]:
        left = ask(capfd, "predict", "run", "--head", row[0], "--relation", "back", "--topk", "99")
        assert row[2] not in answers(left, "tail")
        assert len(left["predictions"]) == NODES - 1


def test_predict_a_head_and_a_relation(here, capfd):
    found = ask(
        capfd, "predict", "run", "--relation", "next", "--tail", "n7", "--known", "mark", "--topk",
        "1",
    )  # fmt: skip
    assert answers(found, "head") == ["n6"]
    assert answers(found, "asked") == ["head"]
    asked = ("predict", "run", "--head", "n5", "--tail", "n6")
    marked = ask(capfd, *asked, "--known", "mark")
    assert dict(zip(answers(marked, "relation"), answers(marked, "known"), strict=True)) == {
        "next": True, "back": False,
    }  # fmt: skip
    assert answers(marked, "relation")[0] == "next"
    assert answers(ask(capfd, *asked), "relation") == ["back"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_many_questions_from_a_file(here, capfd, tmp_path, ending):
    file = tmp_path / f"questions.{ending}"
    rows = [("n1", "next", ""), ("", "next", "n2"), ("n1", "", "n2")]
    columns = dict(
        zip(("head", "relation", "tail"), map(list, zip(*rows, strict=True)), strict=True)
    )
    if ending == "parquet":
        pq.write_table(pa.table({k: [v or None for v in c] for k, c in columns.items()}), file)
    else:
        comma = "\t" if ending == "tsv" else ","
        lines = [comma.join(row) for row in (("head", "relation", "tail"), *rows)]
        file.write_text("\n".join(lines) + "\n")
    out = tmp_path / "answers.csv"
    found = ask(
        capfd, "predict", "run", "--questions", str(file), "--known", "mark", "--topk", "1",
        "--out", str(out),
    )  # fmt: skip
    assert (found["questions"], found["rows"], found["out"]) == (3, 3, str(out))
    assert "predictions" not in found
    with out.open() as lines:
        table = list(csv.DictReader(lines))
    assert [row["asked"] for row in table] == ["tail", "head", "relation"]
    assert [(row["head"], row["relation"], row["tail"]) for row in table] == [
        ("n1", "next", "n2")
    ] * 3
    assert [row["question"] for row in table] == ["1", "2", "3"]


def test_predictions_as_text(here, capfd):
    asked = ["predict", "run", "--head", "n3", "--relation", "next", "--topk", "2"]
    assert main(asked) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown[0].split()[:5] == ["question", "rank", "head", "relation", "tail"]
    assert len(shown) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run"], "no query: give two of"),
        (["run", "--head", "n1"], "no query: give two of"),
        (["run", "--head", "n1", "--relation", "next", "--tail", "n2"], "no query: give two of"),
        (["run", "--head", "n1", "--questions", "q.csv"], "--questions FILE, or two of"),
        (["run", "--head", "m1", "--relation", "next"], "1 of 1 entities are unknown to the run"),
        (["run", "--head", "n1", "--relation", "nxt"], "nearest to 'nxt' is 'next'"),
        (["run", "--head", "n1", "--relation", "next", "--known", "drop"], "filter or mark"),
        (["run", "--head", "n1", "--relation", "next", "--format", "csv"], "--out FILE"),
        (["run", "--head", "n1", "--relation", "next", "--out", "a.xyz"], "ending is not known"),
        (["run", "--questions", "missing.csv"], "cannot be read"),
        (["popular", "--head", "1", "--relation", "next"], "does not complete triples"),
    ],
)
def test_what_predict_refuses(here, capfd, arguments, says):
    before = set(here.rglob("*"))
    refused = ask(capfd, "predict", *arguments, code=2)
    assert says in refused["error"]["message"]
    assert set(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "0 questions"),
        ("head,relation,tail\n", "0 questions"),
        ("head,relation,tail\nn1,next,n2\n", "line 2: 3 of head, relation and tail are given"),
        ("head,relation,tail\nn1,next,\n,next,\n", "line 3: 1 of head, relation and tail"),
        ("head,relation\nn1\n", "line 2: 1 cells, expected 2"),
        ("user,item\n1,2\n", "line 2: 0 of head, relation and tail"),
        ("head,relation\nn1,next\nxx,next\n", "unknown to the run: 'xx'"),
        (b"head,relation\n\xff,next\n", "not UTF-8 at byte 14"),
    ],
)
def test_bad_questions_are_refused(here, capfd, tmp_path, content, says):
    file = tmp_path / "q.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused = ask(capfd, "predict", "run", "--questions", str(file), code=2)
    assert says in refused["error"]["message"]


def test_evaluate_by_relation_and_direction(here, capfd, tmp_path):
    found = ask(
        capfd, "evaluate", "run", "--by", "relation", "--metrics", "mrr,hits", "--topk", "1"
    )
    assert found["by"] == "relation"
    rows = [row for row in found["groups"] if row["part"] == "test"]
    assert [
        (row["relation"], row["relation_name"], row["direction"], row["targets"]) for row in rows
    ] == [
        ("back", "precedes", "tail", 1),
        ("back", "precedes", "head", 1),
        ("back", "precedes", "both", 2),
    ]
    assert rows[2]["mrr"] == pytest.approx(found["test"]["mrr"])
    assert {row["part"] for row in found["groups"]} == {"valid", "test"}
    for ending in ("parquet", "csv", "json"):
        out = tmp_path / f"groups.{ending}"
        written = ask(capfd, "evaluate", "run", "--by", "direction", "--out", str(out))
        assert written["out"] == str(out)
        assert "groups" not in written
        assert out.stat().st_size > 0
    table = pq.read_table(tmp_path / "groups.parquet")
    assert table.num_rows == 6
    assert table.column_names[:3] == ["part", "direction", "targets"]
    leaks = ask(capfd, "evaluate", "run", "--by", "leakage", "--part", "test")["groups"]
    said = [(row["finding"], row["affected"], row["queries"]) for row in leaks]
    assert ("inverse in train", "yes", 2) in said
    popular = ask(capfd, "evaluate", "popular", "--by", "leakage")["groups"]
    assert popular[0]["finding"] == "all"
    assert main(["evaluate", "run", "--by", "direction"]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown] == ["direction", "tail", "head", "both"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--by", "entity"], "must be popularity, history, relation, direction or leakage"),
        (["popular", "--by", "relation"], "is for knowledge graphs"),
        (["run", "--out", "x.csv"], "give --by, such as --by popularity"),
        (["run", "--by", "relation", "--format", "csv"], "--out FILE, which is not given"),
        (["run", "--by", "relation", "--out", "x.doc"], "ending is not known"),
    ],
)
def test_groups_that_are_refused(here, capfd, arguments, says):
    refused = ask(capfd, "evaluate", *arguments, code=2)
    assert says in refused["error"]["message"]

"""``hasten influence`` as people use it: formats, processes, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hasten.cli.main import main
from hasten.cli.output import show_rows
from hasten.distributed import launch
from tests import forked
from tests.contract.cases import graph, sequences

CONVE = ["--set", "model.width=9", "--set", "model.channels=2", "--set", "checkpoint.keep=9"]


def write(path: Path, columns: dict[str, np.ndarray], separator: str = ",", header: bool = True):
    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(map(str, row)) for row in rows]
    path.write_text("\n".join([separator.join(columns)] * header + lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two runs: conve with a checkpoint an epoch, and sasrec."""
    folder = tmp_path_factory.mktemp("influence")
    ring = graph(14)
    ring = {n: np.char.add("e", c.astype(str)) if n != "relation" else c for n, c in ring.items()}
    write(folder / "ring.tsv", ring, "\t", header=False)
    write(folder / "events.csv", sequences(12, 20))
    common = ["--epochs", "2", "--lr", "0.01", "--quiet", "--json"]
    graphs = ["train", "conve", str(folder / "ring.tsv"), *CONVE, *common]
    assert main([*graphs, "--out", str(folder / "ring")]) == 0
    events = ["train", "sasrec", str(folder / "events.csv"), "--set", "model.width=8", *common]
    assert main([*events, "--out", str(folder / "events")]) == 0
    return folder


def influence(capfd, folder, run, *arguments) -> dict:
    capfd.readouterr()
    code = main(["influence", str(folder / run), *map(str, arguments), "--json", "--quiet"])
    shown = capfd.readouterr()
    assert code == 0, shown.err
    return json.loads(shown.out.splitlines()[-1])


def test_rows_are_the_same_in_every_format(folder, capfd, tmp_path):
    asked = ("--triple", "e0,next,e1", "--triple", "e3,second,e5", "--topk", 3)
    shown = influence(capfd, folder, "ring", *asked, "--checkpoints", "all")
    rows = shown["influences"]
    assert [c["name"] for c in shown["checkpoints"]] == ["epoch-0001", "epoch-0002"]
    assert [c["lr"] for c in shown["checkpoints"]] == [0.01, 0.01]
    assert shown["exact"] is True
    assert {row["method"] for row in rows} == {"exact"}
    assert [row["rank"] for row in rows if row["test"] == 1 and row["kind"] == "proponent"] == [
        1, 2, 3]  # fmt: skip
    assert (rows[0]["test_head"], rows[0]["test_relation"], rows[0]["test_tail"]) == (
        "e0", "next", "e1")  # fmt: skip
    for ending in ("json", "csv", "parquet"):
        out = tmp_path / f"rows.{ending}"
        written = influence(capfd, folder, "ring", *asked, "--checkpoints", "all", "--out", out)
        assert (written["rows"], written["out"]) == (len(rows), str(out))
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == rows
    with (tmp_path / "rows.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [{k: str(v) for k, v in row.items()} for row in rows] == [
        {**row, "influence": str(float(row["influence"]))} for row in found
    ]


def test_small_influences_are_shown_by_their_digits(capsys):
    """After a learning rate that fell to zero all of them are."""
    values = (1.0586e-6, -9.9e-4, 0.0, 0.25)
    show_rows([{"influence": value} for value in values], ("influence",))
    shown = capsys.readouterr().out.split()
    assert shown == ["influence", "1.059e-06", "-9.900e-04", "0.0000", "0.2500"]


def test_files_parts_and_several_checkpoints(folder, capfd, tmp_path):
    with_header, without = tmp_path / "a.csv", tmp_path / "b.tsv"
    with_header.write_text("tail,head,relation\ne1,e0,next\n")
    without.write_text("e0\tnext\te1\n")
    wanted = influence(capfd, folder, "ring", "--triple", "e0,next,e1")["influences"]
    for file in (with_header, without):
        assert influence(capfd, folder, "ring", "--test", file)["influences"] == wanted
    whole = influence(capfd, folder, "ring", "--part", "test", "--topk", 1)
    some = influence(capfd, folder, "ring", "--part", "test", "--topk", 1, "--limit", 2)
    assert some["tests"] == 2
    assert some["influences"] == [row for row in whole["influences"] if row["test"] <= 2]
    one, two, both = (
        influence(capfd, folder, "ring", "--self", "--checkpoints", name)["influences"]
        for name in ("1", "epoch-0002", "1,2")
    )
    values = [{(r["head"], r["relation"], r["tail"]): r["influence"] for r in rows}
              for rows in (one, two, both)]  # fmt: skip
    assert len(values[0]) == len(one) > 20
    for triple, value in values[2].items():
        assert value == pytest.approx(values[0][triple] + values[1][triple], rel=1e-5)
    assert [r["influence"] for r in both] == sorted((r["influence"] for r in both), reverse=True)
    assert len(influence(capfd, folder, "ring", "--self", "--topk", 4)["influences"]) == 4


def test_many_tests_are_shown_shortly(folder, capfd):
    capfd.readouterr()
    assert main(["influence", str(folder / "ring"), "--part", "test", "--quiet"]) == 0
    shown = capfd.readouterr()
    lines = shown.out.splitlines()[1:]
    assert 0 < len(lines) <= 10 * 2 * 3
    assert "more rows: of" in shown.err
    assert "--out FILE or --json has all" in shown.err
    assert main(["influence", str(folder / "ring"), "--triple", "e0,next,e1", "--quiet"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1 + 2 * 20


def test_two_processes_write_what_one_does(folder, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(launch, "subprocess", forked)
    files = []
    for devices, options in (
        (1, ["--part", "test"]), (2, ["--part", "test"]), (1, ["--self"]), (2, ["--self"]),
    ):  # fmt: skip
        out = tmp_path / f"{devices}{options[0]}.csv"
        more = ["--devices", str(devices), "--block-size", "7", "--loss", "training"]
        arguments = ["influence", str(folder / "ring"), *options, *more, "--out", str(out)]
        assert main([*arguments, "--quiet"]) == 0, capfd.readouterr().err
        files.append(out.read_bytes())
    assert files[0] == files[1]
    assert files[2] == files[3]


def test_approximations_are_marked(folder, capfd):
    shown = influence(
        capfd, folder, "ring", "--part", "test", "--sample-rate", 0.5, "--projection", 32
    )
    words = (
        "approximate: 0.5 of the training examples sampled; "
        "approximate: gradients projected to 32 numbers"
    )
    assert shown["exact"] is False
    assert shown["method"] == words
    assert {row["method"] for row in shown["influences"]} == {words}
    again = influence(
        capfd, folder, "ring", "--part", "test", "--sample-rate", 0.5, "--projection", 32
    )
    assert again["influences"] == shown["influences"]
    other = influence(
        capfd, folder, "ring", "--part", "test", "--sample-rate", 0.5, "--projection", 32,
        "--seed", 1,
    )  # fmt: skip
    assert other["influences"] != shown["influences"]


def test_events(folder, capfd, tmp_path):
    shown = influence(capfd, folder, "events", "--part", "test", "--limit", 2, "--loss", "training")
    assert shown["layers"] == "last"
    row = shown["influences"][0]
    assert {"test_user_id", "test_item_id", "user_id", "item_id", "position"} <= set(row)
    user, item = row["test_user_id"], row["test_item_id"]
    file = tmp_path / "events.csv"
    file.write_text(f"user_id\n{user}\n")
    more = ("--loss", "training")
    first = [r for r in shown["influences"] if r["test"] == 1]
    found = influence(capfd, folder, "events", "--test", file, *more)["influences"]
    for one, other in zip(found, first, strict=True):  # products of other shapes round otherwise
        assert one == {**other, "influence": pytest.approx(other["influence"], rel=1e-4)}
    asked = ("--event", f"{user},{item}")
    assert influence(capfd, folder, "events", *asked, *more)["influences"] == found
    assert influence(capfd, folder, "events", "--self", "--topk", 2)["rows"] == 2


REFUSED = [
    ("ring", [], ["nothing to explain", "--triple"]),
    ("ring", ["--self", "--part", "test"], ["more than one kind"]),
    ("ring", ["--triple", "e0,next,e99"], ["unknown", "'e99'", "nearest", "'e9'"]),
    ("ring", ["--triple", "e0,nexx,e1"], ["1 of 1 relations are unknown", "'next'"]),
    ("ring", ["--triple", "e0,next"], ["expected head,relation,tail"]),
    ("ring", ["--event", "1,2"], ["this run is of triples"]),
    ("ring", ["--part", "test", "--topk", "-3"], ["--topk", "greater than or equal to 1"]),
    ("ring", ["--part", "train"], ["must be one of valid, test"]),
    ("ring", ["--part", "test", "--loss", "mse"], ["must be one of training, positive"]),
    ("ring", ["--part", "test", "--sample-rate", "0"], ["--sample-rate 0"]),
    ("ring", ["--part", "test", "--memory-budget", "lots"], ["2GB"]),
    ("ring", ["--part", "test", "--memory-budget", "1KB"], ["too few", "take about"]),
    ("ring", ["--part", "test", "--checkpoints", "7"], ["'epoch-0007'", "epoch-0002"]),
    ("ring", ["--part", "test", "--checkpoints", ","], ["names no checkpoint"]),
    ("ring", ["--part", "test", "--format", "csv"], ["--out"]),
    ("ring", ["--part", "test", "--out", "rows.xml"], ["ending"]),
    ("ring", ["--self", "--projection", "8"], ["--projection"]),
    ("ring", ["--self", "--limit", "8"], ["--limit"]),
    ("ring", ["--test", "absent.csv"], ["absent.csv", "no such file"]),
    ("ring", ["--test", "short.tsv"], ["short.tsv", "line 2"]),
    ("ring", ["--test", "two.tsv"], ["two.tsv", "fewer than three cells"]),
    ("ring", ["--test", "empty.tsv"], ["empty.tsv"]),
    ("events", ["--part", "test", "--layers", "all"], ["--layers last"]),
    ("events", ["--event", "1,2,3"], ["expected user,item"]),
    ("events", ["--event", "77,2"], ["users", "'77'", "0 to 11"]),
    ("events", ["--triple", "1,2,3"], ["this run is of interactions"]),
    ("events", ["--test", "short.tsv"], ["user_id"]),
    ("absent", ["--self"], ["no such run folder"]),
]


@pytest.mark.parametrize(("run", "arguments", "words"), REFUSED)
def test_what_cannot_be_is_refused(run, arguments, words, folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("short.tsv").write_text("e0\tnext\te1\ne0\tnext\n")
    Path("two.tsv").write_text("e0\tnext\n")
    Path("empty.tsv").write_text("")
    before = sorted(path.name for path in tmp_path.iterdir())
    capfd.readouterr()
    assert main(["influence", str(folder / run), *arguments, "--json"]) == 2
    shown = capfd.readouterr()
    message = json.loads(shown.out)["error"]["message"]
    for word in words:
        assert word in message, message
    assert shown.err.count("error: ") == 1
    assert "Traceback" not in shown.err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_model_that_cannot_be_traced_is_refused(folder, capfd):
    out = folder / "pop"
    if not out.exists():
        arguments = ["train", "pop", str(folder / "events.csv"), "--quiet", "--out", str(out)]
        assert main(arguments) == 0
    capfd.readouterr()
    assert main(["influence", str(out), "--part", "test", "--json"]) == 2
    message = json.loads(capfd.readouterr().out)["error"]["message"]
    assert "pop does not support influence" in message

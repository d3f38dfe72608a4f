"""Data that cannot be used: one clear message, exit code 2, no traceback, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hasten.cli.main import main

HEADER = "user_id,item_id,rating,timestamp\n"
ROWS = "".join(f"{u},{i},5,{100 + i}\n" for u in range(6) for i in range(u % 3, u % 3 + 5))
GOOD = HEADER + ROWS

#: name -> (content, what the message says, further arguments)
BAD: dict[str, tuple[bytes, list[str], list[str]]] = {
    "empty": (b"", ["bad.csv", "empty"], []),
    "header only": (HEADER.encode(), ["bad.csv", "0 rows"], []),
    "wrong column": (b"who,what\n1,2\n2,3\n", ["bad.csv", "user"], []),
    "missing cell": (f"{GOOD}7,3\n".encode(), ["bad.csv", "line 32", "7,3"], []),
    "non-numeric time": (f"{GOOD}7,3,5,soon\n".encode(), ["bad.csv", "line 32", "soon"], []),
    "users with one event": (
        (HEADER + "".join(f"{u},{u},5,1\n" for u in range(9))).encode(),
        ["bad.csv: no user has 3 events"],
        [],
    ),
    "one user with one event": ((HEADER + "1,2,5,1\n").encode(), ["no user has 3 events"], []),
    "unknown format": (GOOD.encode(), ["unknown format 'cvs'", "delimited"], ["--format", "cvs"]),
    "id of 2^63": (
        f"{GOOD}{2**63},3,5,7\n".encode(),
        ["line 32", str(2**63), "64 bits"],
        ["--set", "data.ids=numbers"],
    ),
    "negative zero": (f"{GOOD}-0,3,5,7\n".encode(), ["line 32", "'-0'"], []),
    "NaN rating": (f"{GOOD}7,3,nan,7\n".encode(), ["line 32", "nan", "not finite"], []),
    "non-UTF-8": (f"{GOOD}7,caf\xe9,5,7\n".encode("latin-1"), ["UTF-8"], []),
    "NUL": (f"{GOOD}7,3\x00,5,7\n".encode(), ["bad.csv", "NUL"], []),
    "k-core leaves nothing": (GOOD.encode(), ["k_core"], ["--set", "data.k_core=1000"]),
    "rating leaves nothing": (GOOD.encode(), ["min_rating"], ["--set", "data.min_rating=9"]),
}


def refused(arguments: list[str], words: list[str], capfd, folder: Path) -> None:
    """One message with these words in the text and in the JSON object; the folder as before."""
    before = sorted(path.name for path in folder.rglob("*"))
    assert main([*arguments, "--json"]) == 2
    shown = capfd.readouterr()
    assert shown.out.count("\n") == 1
    error = json.loads(shown.out)["error"]
    assert error["code"] in ("data", "usage", "configuration", "run_folder")
    assert shown.err.count("error: ") == 1
    assert "Traceback" not in shown.err
    assert "Error" not in error["message"]
    for word in words:
        assert word in error["message"]
    assert sorted(path.name for path in folder.rglob("*")) == before


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("out", [[], ["--out", "deep/run"]], ids=["runs", "out"])
def test_bad_files(name, out, tmp_path, monkeypatch, capfd):
    content, words, arguments = BAD[name]
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_bytes(content)
    refused(["train", "sasrec", "bad.csv", *arguments, *out], words, capfd, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.csv"], ["absent.csv", "no such file"]),
        (["sequence"], ["did you mean 'sequences'?"]),
        (["ml-100k"], ["hasten data fetch ml-100k"]),
        (["full"], ["full"]),
        (["--set", "data.train=good.csv", "--set", "data.test=absent.csv"], ["absent.csv"]),
        (["--set", "data.train=one.csv", "--set", "data.test=good.csv"], ["two or more"]),
        (["good.csv", "--set", "data.columns.user=who"], ["who"]),
        (["good.csv", "--device", "tpu"], ["tpu"]),
        (["good.csv", "--metrics", "ndgc"], ["ndgc", "did you mean 'ndcg@10'"]),
        (["good.csv", "--set", "model.heads=3"], ["heads"]),
        (["good.csv", "--out", "good.csv"], ["good.csv"]),
        (["good.csv", "--out", "full"], ["full"]),
    ],
)
def test_bad_requests(arguments, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    Path("good.csv").write_text(GOOD)
    Path("one.csv").write_text(HEADER + "".join(f"{u},{u},5,1\n" for u in range(6)))
    Path("full").mkdir()
    Path("full/note.txt").write_text("mine")
    refused(["train", "sasrec", *arguments], words, capfd, tmp_path)


@pytest.mark.parametrize("verb", ["resume", "evaluate", "recommend"])
def test_bad_run_folders(verb, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").write_text("x")
    more = ["--users", "1"] if verb == "recommend" else []
    for folder in ("absent", "empty", "file"):
        before = sorted(path.name for path in tmp_path.rglob("*"))
        assert main([verb, folder, *more, "--json"]) == 2
        shown = capfd.readouterr()
        assert json.loads(shown.out)["error"]["code"] == "run_folder"
        assert "Traceback" not in shown.err
        assert sorted(path.name for path in tmp_path.rglob("*")) == before

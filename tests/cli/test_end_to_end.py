"""The commands one after the other on a small file, as a person types them."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hasten.cli.main import main
from tests import forked

ITEMS = 15
#: thirty users who walk a circle of fifteen items, one step at a time
EVENTS = "user_id,item_id,timestamp\n" + "".join(
    f"user{u},item{(u + step) % ITEMS},{100 + step}\n" for u in range(30) for step in range(8)
)
QUICK = ["--set", "model.width=16", "--set", "model.max_length=10", "--threads", "1"]
LEARN = ["--epochs", "25", "--lr", "0.01", "--batch-size", "10", "--set", "model.dropout=0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("end_to_end")
    (folder / "events.csv").write_text(EVENTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "sasrec", "events.csv", *QUICK, *LEARN, "--out", "run"]) == 0
        assert main(["train", "pop", "events.csv", "--out", "popular", "--quiet"]) == 0
    return folder


@pytest.fixture
def here(folder, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def ask(capfd, *arguments: str, code: int = 0) -> dict[str, Any]:
    capfd.readouterr()
    assert main([*arguments, "--json"]) == code
    shown = capfd.readouterr()
    assert shown.out.count("\n") == 1
    assert "Traceback" not in shown.err
    found: dict[str, Any] = json.loads(shown.out)
    return found


def test_training_prints_the_contract(here, capfd):
    found = ask(capfd, "train", "sasrec", "events.csv", *QUICK, "--epochs", "1", "--quiet")
    assert {
        "run", "model", "data", "epochs", "valid", "test", "protocol", "seconds",
        "examples_per_second", "peak_memory_bytes", "effective",
    } <= set(found)  # fmt: skip
    assert (found["model"], found["data"], found["epochs"]) == ("sasrec", "events", 1)
    assert set(found["seconds"]) == {"train", "evaluate", "total"}
    names = {"ndcg@10", "recall@20"}
    assert set(found["test"]) == names | {f"{name}/kept" for name in names}
    assert found["effective"]["threads"] == 1
    assert Path(found["run"]).parent == Path("runs")
    assert (Path(found["run"]) / "config.yaml").is_file()


def test_a_saved_configuration_repeats_the_run(here, capfd):
    again = ask(capfd, "train", "--config", "run/config.yaml", "--out", "again", "--quiet")
    first = json.loads(Path("run/metrics.json").read_text())
    assert again["test"] == first["test"]
    assert again["valid"] == first["valid"]
    refused = ask(capfd, "train", "pop", "--config", "run/config.yaml", code=2)
    assert "two models: pop (MODEL) and sasrec" in refused["error"]["message"]


def test_a_folder_that_holds_a_run_is_not_overwritten(here, capfd):
    refused = ask(capfd, "train", "pop", "events.csv", "--out", "popular", code=2)
    assert refused["error"]["code"] == "run_folder"


def test_evaluate_by_the_same_and_by_another_protocol(here, capfd):
    first = json.loads(Path("run/metrics.json").read_text())
    same = ask(capfd, "evaluate", "run")
    assert same["test"] == first["test"]
    assert same["protocol"] == first["protocol"]
    arguments = ["--metrics", "mrr,hr", "--topk", "1,5", "--set", "evaluation.mask_history=false"]
    other = ask(capfd, "evaluate", "run", "--checkpoint", "final", *arguments)
    names = ["mrr", "hr@1", "hr@5"]
    assert list(other["test"]) == [*names, *(f"{name}/masked" for name in names)]
    assert other["protocol"] != first["protocol"]
    assert other["test"]["hr@5"] >= other["test"]["hr@1"] > 0.8
    assert list(ask(capfd, "evaluate", "run", "--topk", "3")["test"])[:2] == ["ndcg@3", "recall@3"]
    refused = ask(capfd, "evaluate", "run", "--set", "training.lr=1", code=2)
    assert "training.lr" in refused["error"]["message"]


def test_evaluate_like_another_library(here, capfd):
    arguments = ["--metrics", "mrr,hr", "--topk", "1,5", "--set", "evaluation.mask_history=false"]
    kept = ask(capfd, "evaluate", "run", *arguments)
    like = ask(capfd, "evaluate", "run", *arguments[:4], "--like", "recbole")
    assert like["test"] == kept["test"]
    assert like["protocol"].endswith("history kept, realistic ties, like recbole")
    assert list(ask(capfd, "evaluate", "run", "--like", "recbole", "--topk", "7")["test"])[:2] == [
        "mrr@7", "recall@7",
    ]  # fmt: skip
    assert main(["evaluate", "run", "--like", "mmrec"]) == 0
    shown = capfd.readouterr().err
    assert "like mmrec: " in shown
    assert "evaluation.mask_history=train" in shown
    assert "training items masked" in shown
    assert "like mmrec except for the split" in shown
    refused = ask(capfd, "evaluate", "run", "--like", "pykeen", code=2)
    assert "choose one of recbole" in refused["error"]["message"]
    both = ["--like", "recbole", "--set", "evaluation.ties=rounded"]
    assert "contradicts" in ask(capfd, "evaluate", "run", *both, code=2)["error"]["message"]


def test_a_run_like_another_library_records_it(here, capfd):
    assert main(["train", "pop", "events.csv", "--like", "recbole", "--out", "like"]) == 0
    assert "like recbole: data.split=ratio data.ratios=0.8,0.1,0.1" in capfd.readouterr().err
    found = json.loads(Path("like/metrics.json").read_text())
    assert next(iter(found["valid"])) == "mrr@10"
    assert found["protocol"].startswith("ratio 0.8/0.1/0.1 of each user's events, rounded down, at")
    assert found["protocol"].endswith(", masked targets are candidates, like recbole")
    assert "  like: recbole" in Path("like/config.yaml").read_text()


def test_the_test_part_is_evaluated_only_where_it_is_wanted(here, capfd):
    first = json.loads(Path("run/metrics.json").read_text())
    options = ["--epochs", "1", "--set", "evaluation.test=false", "--out", "sealed"]
    sealed = ask(capfd, "train", "sasrec", "events.csv", *options)
    assert sealed["valid"]
    assert sealed["test"] == {}
    assert "full ranking" in sealed["protocol"]
    assert '"kind": "test"' not in Path("sealed/metrics.jsonl").read_text()
    assert "test of epoch" not in Path("sealed/val.log").read_text()
    again = ask(capfd, "evaluate", "sealed")
    assert (again["valid"], again["test"]) == (sealed["valid"], {})
    opened = ask(capfd, "evaluate", "sealed", "--part", "test")
    assert opened["valid"] == {}
    assert set(opened["test"]) == set(sealed["valid"])
    assert ask(capfd, "evaluate", "run", "--part", "test")["test"] == first["test"]
    assert ask(capfd, "evaluate", "run", "--part", "valid")["test"] == {}
    refused = ask(capfd, "evaluate", "run", "--part", "train", code=2)
    assert "valid, test" in refused["error"]["message"]


def test_recommend_as_text_names_the_next_on_the_circle(here, capfd):
    assert main(["recommend", "run", "--users", "user0,user7", "--topk", "2"]) == 0
    shown = capfd.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["user_id", "rank", "item_id", "score"]
    assert lines[1][:3] == ["user0", "1", "item8"]
    assert lines[3][:3] == ["user7", "1", "item0"]
    assert len(lines) == 5
    assert "everything known" in shown.err


def test_recommend_for_new_histories(here, capfd):
    found = ask(capfd, "recommend", "run", "--history", "item3,item4,item5", "--topk", "1")
    assert found["recommendations"][0]["item_id"] == "item6"
    assert found["history"] == "the given histories alone"
    Path("new.csv").write_text(
        "user_id,item_id,timestamp\nx,item9,3\nx,item8,2\ny,item1,1\ny,item2,2\n"
    )
    found = ask(capfd, "recommend", "run", "--history-file", "new.csv", "--topk", "1")
    lists = {row["user_id"]: row["item_id"] for row in found["recommendations"]}
    assert lists == {"x": "item10", "y": "item3"}


def test_recommend_into_files(here, capfd):
    Path("users.txt").write_text("user3\nuser1\n")
    Path("allowed.txt").write_text("".join(f"item{i}\n" for i in range(12)))
    Path("blocked.txt").write_text("item9\n")
    lists = ["--allow", "allowed.txt", "--block", "blocked.txt"]
    for name in ("out.parquet", "out.csv", "out.json"):
        about = ask(capfd, "recommend", "run", "--users", "users.txt", *lists, "--out", name)
        assert about["out"] == name
        assert "recommendations" not in about
        assert not list(here.glob(".out*"))
    table = pq.read_table("out.parquet")
    assert table.column_names == ["user_id", "item_id", "rank", "score"]
    rows = table.to_pylist()
    assert about["rows"] == len(rows)
    assert [row["user_id"] for row in rows] == sorted(
        (row["user_id"] for row in rows), key=["user3", "user1"].index
    )
    seen = {"user3": {f"item{i}" for i in range(3, 11)}, "user1": {f"item{i}" for i in range(1, 9)}}
    for row in rows:
        assert row["item_id"] not in seen[row["user_id"]] | {"item9", "item12", "item13", "item14"}
    with Path("out.csv").open(newline="") as file:
        assert [row["item_id"] for row in csv.DictReader(file)] == [r["item_id"] for r in rows]
    assert json.loads(Path("out.json").read_text()) == rows


def test_scores_do_not_depend_on_who_else_is_asked_for(here, capfd):
    arguments = ["--topk", "3", "--include-seen"]
    everyone = ask(capfd, "recommend", "run", "--users", "all", *arguments)["recommendations"]
    one = ask(capfd, "recommend", "run", "--users", "user4", *arguments)["recommendations"]
    assert len(everyone) == 90
    same = [row for row in everyone if row["user_id"] == "user4"]
    assert [row["item_id"] for row in one] == [row["item_id"] for row in same]
    assert [row["score"] for row in one] == pytest.approx([row["score"] for row in same], rel=1e-5)


def test_what_recommend_refuses(here, capfd):
    for arguments, word in [
        (["--users", "user0,nobody"], "'nobody'"),
        (["--users", "absent.csv"], "no such file"),
        (["--history", "item1,nothing"], "'nothing'"),
        (["--history", ","], "is empty"),
        (["--users", "user0", "--out", "x.xlsx"], "parquet, csv, json"),
        (["--users", "user0", "--out", "absent/x.csv"], "absent"),
        (["--users", "user0", "--format", "csv"], "--out"),
        (["--users", "user0", "--topk", "0"], "--topk"),
        (["--users", "user0", "--block", "absent.txt"], "absent.txt"),
    ]:
        refused = ask(capfd, "recommend", "run", *arguments, code=2)
        assert word in refused["error"]["message"]
    lost = ask(capfd, "recommend", "run", "--users", "all", "--checkpoint", "epoch-9999", code=2)
    assert "best, final" in lost["error"]["message"]


def test_popularity_recommends_too(here, capfd):
    found = ask(capfd, "recommend", "popular", "--users", "user0", "--include-seen")
    scores = [row["score"] for row in found["recommendations"]]
    assert scores == sorted(scores, reverse=True)


def test_resume_goes_on(here, capfd):
    short = [*QUICK, "--epochs", "2", "--out", "short", "--quiet"]
    assert ask(capfd, "train", "sasrec", "events.csv", *short)["epochs"] == 2
    assert ask(capfd, "resume", "short", "--epochs", "3", "--quiet")["epochs"] == 3
    refused = ask(capfd, "resume", "short", "--set", "model.width=8", code=2)
    assert "model.width" in refused["error"]["message"]
    auto = [*QUICK, "--out", "auto", "--resume", "auto", "--quiet"]
    assert ask(capfd, "train", "sasrec", "events.csv", *auto, "--epochs", "1")["epochs"] == 1
    assert ask(capfd, "train", "sasrec", "events.csv", *auto, "--epochs", "2")["epochs"] == 2


@pytest.mark.parametrize(
    ("number", "start"), [(signal.SIGINT, subprocess.Popen), (signal.SIGTERM, forked.Popen)]
)
def test_a_signal_saves_and_the_run_goes_on(here, capfd, number, start):
    name = f"stopped-{number}"
    arguments = ["train", "sasrec", str(here / "events.csv"), *QUICK, "--json"]
    arguments += ["--epochs", "100000", "--out", str(here / name)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with Path(f"{name}.out").open("w") as out, Path(f"{name}.err").open("w") as err:
        command = [sys.executable, "-m", "hasten", *arguments]
        process = start(command, stdout=out, stderr=err, env=environment)
    deadline = time.monotonic() + 120
    checkpoints = here / name / "checkpoints"
    while not (checkpoints.is_dir() and any(checkpoints.glob("epoch-*"))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    assert json.loads(Path(f"{name}.out").read_text())["error"]["code"] == "interrupted"
    epochs = ask(capfd, "resume", name, "--epochs", "1", "--quiet")["epochs"]
    assert epochs >= 1


def test_torchrun_of_one_process_works_and_half_an_environment_is_refused(here, capfd, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert ask(capfd, "evaluate", "run")["model"] == "sasrec"
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = ask(capfd, "evaluate", "run", code=2)
    assert "RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set" in refused["error"]["message"]

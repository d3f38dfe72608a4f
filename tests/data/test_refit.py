"""The validation part as training data: events, and triples."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from hasten import api, run
from hasten.cli.main import main
from hasten.config import InteractionOptions, TripleOptions
from hasten.config_loading.build import build_config
from hasten.data.graph.load import load_graph
from hasten.data.interactions.load import load_dataset
from hasten.data.splits import refitted
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.distributed.processes import Processes
from hasten.errors import ConfigurationError, DataError, Interrupted
from hasten.training.trainer import Trainer
from tests.contract.cases import graph, sequences


@pytest.mark.parametrize("kind", ["events", "triples"])
def test_validation_joins_train_and_test_stays(kind):
    if kind == "events":
        plain = load_dataset(InteractionOptions(), 0, sequences())
    else:
        plain = load_graph(TripleOptions(), 0, graph())
    found = refitted(plain)
    assert not (found.part == VALID).any()
    assert np.array_equal(found.part == TEST, plain.part == TEST)
    assert np.array_equal(found.part == TRAIN, plain.part != TEST)
    assert found.split.endswith("refitted on train and validation")
    assert found.source.counts["valid"] == 0
    with pytest.raises(DataError, match="no validation part"):
        refitted(found)


def test_a_refitted_run_is_judged_on_the_same_test(tmp_path):
    settings = {
        "training.epochs": 2,
        "model.width": 8,
        "model.max_length": 8,
        "data.refit": True,
        "threads": 1,
    }
    result = api.train(
        "sasrec", sequences(), settings=settings, out=str(tmp_path / "a"), quiet=True
    )
    assert result.summary.valid == {}
    assert result.summary.test
    assert result.summary.best_epoch == 2
    assert "refitted" in result.protocol


SMALL = {"model.width": 8, "model.max_length": 8, "threads": 1, "training.epochs": 3}


def test_one_call_selects_and_refits(tmp_path):
    out = tmp_path / "run"
    result = api.train(
        "sasrec", sequences(), settings=SMALL, out=str(out), quiet=True, refit=True, patience=1
    )
    chosen = result.summary.selected
    assert chosen is not None
    assert result.path == out / "refit"
    assert result.summary.epochs == chosen["best_epoch"]
    assert chosen["valid"]
    assert result.summary.valid == {}
    assert "refitted" in result.protocol
    settings = {**SMALL, "data.refit": True, "training.epochs": chosen["best_epoch"]}
    by_hand = api.train(
        "sasrec", sequences(), settings=settings, out=str(tmp_path / "b"), quiet=True
    )
    assert by_hand.metrics == result.metrics


def test_a_refit_that_was_begun_is_gone_on_with(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = sequences()
    lines = [f"{u},{i},{t}" for u, i, t in zip(*table.values(), strict=True)]
    (tmp_path / "events.csv").write_text("\n".join(["user_id,item_id,timestamp", *lines]) + "\n")
    words = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    command = ["train", "sasrec", "events.csv", *words, "--out", "run", "--resume", "auto"]
    assert main([*command, "--quiet"]) == 0
    assert not (tmp_path / "run" / "refit").exists()
    assert main([*command, "--refit", "--quiet", "--json"]) == 0
    first = capsys.readouterr().out.splitlines()[-1]
    assert main([*command, "--refit", "--quiet", "--json"]) == 0
    again = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(first)["test"] == json.loads(again)["test"]
    assert json.loads(again)["selected"]["run"] == "run"


def test_an_interrupted_selection_is_continued_by_the_same_command(tmp_path, monkeypatch):
    """``hasten resume`` would end without the refit."""
    finish = Trainer.finish_epoch

    def stop(trainer):
        os.kill(os.getpid(), signal.SIGINT)
        finish(trainer)

    given = {"settings": SMALL, "out": str(tmp_path / "run"), "quiet": True, "refit": True}
    monkeypatch.setattr(Trainer, "finish_epoch", stop)
    with pytest.raises(Interrupted, match=r"saved: repeat the command with  --resume auto --out /"):
        api.train("sasrec", sequences(), **given)
    monkeypatch.setattr(Trainer, "finish_epoch", finish)
    config = build_config("sasrec", flags={**SMALL, "out": str(tmp_path / "run")})
    found = run.train(config, table=sequences(), quiet=True, resume_auto=True, refit=True)
    assert found.run == tmp_path / "run" / "refit"
    assert found.selected is not None


def test_a_time_limit_before_the_refit_is_told_with_the_command_that_goes_on(tmp_path, capsys):
    out = tmp_path / "run"
    given = {**SMALL, "out": str(out)}
    limited = build_config("sasrec", flags={**given, "training.max_time": 1e-9})
    first = run.train(limited, table=sequences(), quiet=True, refit=True)
    assert first.stopped_by == "max_time"
    assert (
        f"before the refit: to go on and refit, repeat the command with  --resume auto --out {out}"
        in (capsys.readouterr().err)
    )
    config = build_config("sasrec", flags={**given, "training.max_time": 3600.0})
    found = run.train(config, table=sequences(), quiet=True, resume_auto=True, refit=True)
    assert found.run == out / "refit"
    assert "refit" not in capsys.readouterr().err


def test_a_restart_within_the_refit_keeps_the_selection(tmp_path, monkeypatch):
    given = {"settings": SMALL, "out": str(tmp_path / "run"), "quiet": True, "refit": True}
    selected = api.train("sasrec", sequences(), **given).summary.selected
    refit = str(tmp_path / "run" / "refit")
    monkeypatch.setattr(Processes, "restarts", 1)
    monkeypatch.setattr(Processes, "load_job_state", lambda self, name: refit)
    again = api.train("sasrec", sequences(), **given)
    assert str(again.path) == refit
    assert again.summary.selected == selected


def test_refit_without_a_validation_part_is_refused_before_training(tmp_path):
    settings = {**SMALL, "data.split": "ratio", "data.ratios": [0.8, 0.0, 0.2]}
    with pytest.raises(DataError, match="no validation part"):
        api.train("sasrec", sequences(), settings=settings, out=str(tmp_path / "a"), refit=True)
    assert not (tmp_path / "a").exists()
    with pytest.raises(ConfigurationError, match="use only one of them"):
        api.train("sasrec", sequences(), settings={**SMALL, "data.refit": True}, refit=True)

"""Experiment trackers get what the run folder gets, and never end a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import hasten
from hasten import run as runs
from hasten.config_loading.build import build_config
from hasten.runs.trackers import open as trackers
from tests.comparison.conftest import EVENTS, QUICK

SMALL = {**QUICK, "epochs": 2}


@pytest.fixture
def events(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events.csv").write_text(EVENTS)
    return tmp_path / "events.csv"


def train(events: Path, to: str, **given: object) -> hasten.Result:
    settings = {**SMALL, "logging.to": to, "logging.project": "mine", **given}
    return hasten.train("sasrec", events, settings=settings, out=events.parent / "run", quiet=True)


def recorded(run: Path, kind: str, name: str) -> list[tuple[int, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line[name]) for line in lines if line["kind"] == kind]


def test_mlflow_gets_metrics_settings_and_files(events, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (events.parent / "mlruns").as_uri())
    path = train(events, "mlflow", **{"logging.artifacts": "model"}).path
    client = mlflow.MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    number = kept.info.run_id
    assert kept.info.status == "FINISHED"
    assert kept.data.params["model.width"] == "8"
    assert kept.data.params["training.lr"] == "0.01"
    assert kept.data.tags["hasten.protocol"].startswith("leave-last-two-out")
    assert kept.data.tags["hasten.device"]
    files = {each.path for each in client.list_artifacts(number)}
    assert files == {"config.yaml", "metrics.json", "record.json", "best"}

    def history(name: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in client.get_metric_history(number, name)]

    assert history("valid/ndcg_at_10") == recorded(path, "valid", "ndcg@10")
    assert history("test/ndcg_at_10") == recorded(path, "test", "ndcg@10")
    runs.resume(path, changes={"training.epochs": 3}, quiet=True)  # goes on in the same run
    assert history("valid/ndcg_at_10") == recorded(path, "valid", "ndcg@10")
    assert len(client.search_runs([kept.info.experiment_id])) == 1


def test_wandb_is_offline_and_gets_metrics_and_settings(events, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    path = train(events, "wandb").path
    number = json.loads((path / trackers.IDS).read_text())["wandb"]
    (folder,) = (events.parent / "wandb").glob(f"offline-run-*-{number}")
    wanted = (b"valid/ndcg@10", b"train/lr", b"model.width", b"leave-last-two-out")
    end = time.monotonic() + 120  # its service writes the file
    while not all(text in (folder / f"run-{number}.wandb").read_bytes() for text in wanted):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_tracker_that_fails_does_not_end_the_run(events, monkeypatch, capsys):
    pytest.importorskip("mlflow")
    told, ended = [], []

    def record(values, step):
        if len(told) == 2:
            raise OSError("no connection")
        told.append((step, *values))

    made = SimpleNamespace(
        name="mlflow", id="7", record=record, record_settings=lambda *_: None,
        keep=lambda files: None, finish=ended.append,
    )  # fmt: skip
    monkeypatch.setattr(trackers, "_open", lambda *_: made)
    result = train(events, "mlflow")
    assert "warning: logging.to=mlflow failed and gets nothing more: no connection" in (
        capsys.readouterr().err
    )
    assert result.metrics
    assert len(told) == 2
    assert ended == ["failed"]


def test_a_run_that_ends_early_says_so(events, monkeypatch):
    pytest.importorskip("mlflow")
    ended = []
    made = SimpleNamespace(
        name="mlflow", id="7", record=lambda *_: None, record_settings=lambda *_: None,
        keep=lambda files: None, finish=ended.append,
    )  # fmt: skip
    monkeypatch.setattr(trackers, "_open", lambda *_: made)

    def stop(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.train(
            build_config("sasrec", str(events), None, (), {**SMALL, "logging.to": "mlflow"}),
            quiet=True,
            callbacks=[stop],
        )
    assert ended == ["interrupted"]


def test_a_missing_package_or_tracker_ends_before_the_run_begins(events, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(hasten.HastenError, match=r"pip install 'hasten\[wandb\]'"):
        train(events, "wandb")
    assert not (events.parent / "run").exists()
    with pytest.raises(hasten.HastenError, match=r"has no effect: it needs logging\.to"):
        hasten.train("sasrec", events, settings={**SMALL, "logging.project": "mine"})

"""The Python API as a notebook uses it: names, representations, a cell run twice, callbacks."""

from __future__ import annotations

import pyarrow as pa
import pytest

import hasten
from hasten.errors import RunFolderError, UsageError
from tests.contract.cases import sequences

SMALL = {
    "model.width": 16,
    "model.max_length": 12,
    "training.batch_size": 8,
    "device": "cpu",
    "threads": 1,
}


def train(out, **options):
    return hasten.train("sasrec", sequences(), settings=SMALL, out=str(out), quiet=True, **options)


def test_the_public_names_are_listed_and_there():
    assert set(hasten.__all__) <= set(dir(hasten))
    assert "annotations" not in dir(hasten)
    for name in dir(hasten):
        assert getattr(hasten, name) is not None


def test_runs_and_results_are_short_in_a_notebook(tmp_path):
    result = train(tmp_path / "run", epochs=1)
    run = result.loaded
    assert repr(run).startswith(f"<hasten run {tmp_path / 'run'}: sasrec on ")
    assert len(repr(run)) < len(str(tmp_path)) + 100
    assert "sasrec" in run._repr_html_()
    assert f"<td>{result.metrics['ndcg@10']:.4f}</td>" in result._repr_html_()
    assert result.protocol in result._repr_html_()


def test_a_stream_is_read_once_for_two_trainings(tmp_path):
    runs = [
        hasten.train(
            "sasrec",
            data,
            settings=SMALL,
            out=str(tmp_path / name),
            quiet=True,
            refit=True,
            epochs=1,
        )
        for name, data in (
            ("table", sequences()),
            ("stream", pa.table(sequences()).to_reader()),
        )
    ]
    assert runs[0].metrics == runs[1].metrics


def test_a_cell_run_twice(tmp_path):
    out = tmp_path / "run"
    first = train(out, epochs=1)
    with pytest.raises(RunFolderError, match='resume="auto" or overwrite=True'):
        train(out, epochs=1)
    again = train(out, epochs=2, resume="auto")
    assert again.summary.epochs == 2
    (out / "own.csv").write_text("x")
    with pytest.raises(hasten.HastenError, match="unknown key"):
        train(out, epochs=1, overwrite=True, nonsense=3)
    assert (out / "own.csv").exists()  # nothing is deleted before the rest was checked
    once_more = train(out, epochs=1, overwrite=True)
    assert once_more.metrics == first.metrics
    assert not (out / "own.csv").exists()
    for wrong in ({"resume": "yes"}, {"resume": "auto", "overwrite": True}):
        with pytest.raises(UsageError, match="resume"):
            train(out, **wrong)
    with pytest.raises(UsageError, match="needs out"):
        hasten.train("pop", sequences(), overwrite=True)


def test_callbacks_see_each_epoch_and_end_the_run(tmp_path):
    seen = []

    def at_two(report):
        seen.append((report.number, report.valid["ndcg@10"], report.losses["loss"]))
        return report.number == 2

    result = train(tmp_path / "run", epochs=5, callbacks=[at_two])
    assert [number for number, *_ in seen] == [1, 2]
    assert (result.summary.epochs, result.summary.stopped_by) == (2, "callback")
    assert result.valid_metrics["ndcg@10"] == max(value for _, value, _ in seen)
    resumed = train(tmp_path / "run", epochs=5, resume="auto")
    assert resumed.metrics == train(tmp_path / "whole", epochs=5).metrics

    class Pruned(Exception):
        """As Optuna raises it."""

    def prune(report):
        raise Pruned

    with pytest.raises(Pruned):
        train(tmp_path / "pruned", epochs=5, callbacks=[prune])
    with pytest.raises(UsageError, match="callbacks with devices=2"):
        hasten.train("sasrec", devices=2, out=str(tmp_path / "two"), callbacks=[prune])

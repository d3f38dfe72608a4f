"""Run folders of an earlier version resume, evaluate and answer as they did then.

``runs-VERSION.tar.xz`` holds one run a model, trained for one epoch by that version, and
``expected-VERSION.json`` what it said of them: their metrics, some recommendations or predictions,
and the metrics of the same run after three epochs without a pause.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hasten.api import load
from hasten.inference.predict import predict
from hasten.inference.recommend import recommend
from hasten.loaded_run import evaluate
from hasten.run import resume

HERE = Path(__file__).parent
EXPECTED: dict[str, Any] = json.loads((HERE / "expected-0.1.0.json").read_text())
each_run = pytest.mark.parametrize("label", EXPECTED)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(HERE / "runs-0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "runs"


def close(found: Any, expected: Any) -> bool:
    """Equal but for rounding: another CPU sums in another order."""
    return bool(found == pytest.approx(expected, rel=1e-4, abs=1e-6))


def of_old(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that 0.1.0 reported: those of the protocol, not of the other ranking."""
    return {name: value for name, value in metrics.items() if "/" not in name}


@each_run
def test_an_old_run_evaluates_as_it_did(runs, label):
    found = evaluate(runs / label, device="cpu")
    expected = EXPECTED[label]["evaluated"]
    # later versions add what they find in the data (ties, leaks)
    assert found["protocol"].startswith(expected["protocol"])
    assert close(of_old(found["valid"]), expected["valid"])
    assert close(of_old(found["test"]), expected["test"])


@each_run
def test_an_old_run_answers_as_it_did(runs, label):
    loaded, expected = load(runs / label, device="cpu"), EXPECTED[label]["answers"]
    if "user_id" in expected:
        table = recommend(loaded, users=[1, 2], topk=3).to_table()
    else:
        relation = expected["relation"][0]
        table = predict(loaded, [{"head": 0, "relation": relation}], topk=3).to_table()
    found = table.to_pydict()
    assert found.keys() >= expected.keys()
    assert close(found["score"], expected["score"])
    labels = [name for name in expected if name not in ("score", "known")]
    for name in labels:
        assert [str(x) for x in found[name]] == [str(x) for x in expected[name]], name


@each_run
def test_an_old_run_resumes_to_the_same_end(runs, label, tmp_path):
    expected = EXPECTED[label]["resumed"]
    changes = {"training.epochs": 3} if EXPECTED[label]["trains"] else {}
    summary = resume(runs / label, out=tmp_path / "copy", changes=changes, quiet=True)
    assert summary.epochs == expected["epochs"]
    assert close(of_old(summary.valid), expected["valid"])
    assert close(of_old(summary.test), expected["test"])

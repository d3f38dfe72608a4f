"""Run folders of earlier versions resume, evaluate and answer as they did then.

``runs-VERSION.tar.xz`` holds one run a model, trained for one epoch by that version, and
``expected-VERSION.json`` what it said of them: their metrics, some recommendations or predictions,
and the metrics of the same run after three epochs without a pause. :mod:`.store` writes both.
Those of ``hgt`` after three epochs are of a later version, which samples other negatives.
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
from hasten.registry import BUILT_IN
from hasten.run import resume
from tests.compatibility.store import STORED, store

HERE = Path(__file__).parent
EXPECTED: dict[str, Any] = {
    f"{path.stem.partition('-')[2]}/runs/{label}": expected
    for path in sorted(HERE.glob("expected-*.json"))
    for label, expected in json.loads(path.read_text()).items()
}
each_run = pytest.mark.parametrize("label", EXPECTED)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    for path in HERE.glob("runs-*.tar.xz"):
        with tarfile.open(path) as archive:
            version = path.name.removeprefix("runs-").removesuffix(".tar.xz")
            archive.extractall(folder / version, filter="data")
    return folder


def close(found: Any, expected: Any) -> bool:
    """Equal but for rounding: another CPU sums in another order."""
    return bool(found == pytest.approx(expected, rel=1e-4, abs=1e-6))


def close_metrics(found: dict[str, float], expected: dict[str, float]) -> bool:
    """The metrics that the old version reported; later versions report more."""
    return close({name: found.get(name) for name in expected}, expected)


@each_run
def test_an_old_run_evaluates_as_it_did(runs, label):
    found = evaluate(runs / label, device="cpu")
    expected = EXPECTED[label]["evaluated"]
    # later versions add what they find in the data (ties, leaks)
    assert found["protocol"].startswith(expected["protocol"])
    assert close_metrics(found["valid"], expected["valid"])
    assert close_metrics(found["test"], expected["test"])


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
    assert close_metrics(summary.valid, expected["valid"])
    assert close_metrics(summary.test, expected["test"])


def test_a_release_stores_runs_of_every_model():
    assert {case.model for case in STORED.values()} == {entry.name for entry in BUILT_IN}


def test_a_stored_run_has_what_these_tests_read_and_names_no_machine(tmp_path):
    stored = store(STORED["pop"], tmp_path / "pop")
    assert stored.keys() == EXPECTED["0.1.0.dev0/runs/pop"].keys()
    assert stored["answers"].keys() >= EXPECTED["0.1.0.dev0/runs/pop"]["answers"].keys()
    assert not [*(tmp_path / "pop").glob("events.out.*"), *(tmp_path / "pop").glob(".lock")]

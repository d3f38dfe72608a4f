"""What every model must do: one suite, run over every case of :mod:`tests.contract.cases`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten import api, run
from hasten.data.tables import TEST
from hasten.errors import ConfigurationError
from hasten.evaluation.protocols import ranking_task
from hasten.models.supports import Supports
from hasten.ops.buckets import padded_like_bf16
from hasten.ops.dense import product
from hasten.registry import load_model
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import assert_close, assert_same, training_log
from hasten.training import trainer
from hasten.training.compile import compile_step
from tests.contract.cases import CASES, ModelCase, sequences
from tests.evaluation.shares import metrics_of_shares

#: the suite runs on another device where this names one (make gpu-check)
DEVICE = os.environ.get("HASTEN_TEST_DEVICE", "cpu")
TRAINED = [case for case in CASES if case.trains]
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
COMPILED = [case for case in TRAINED if Supports.of(load_model(case.model)).compile]
each_compiled = pytest.mark.parametrize("case", COMPILED, ids=lambda case: case.label)
FIRST_COMPILED = {case.model: case for case in reversed(COMPILED)}
each_compiled_model = pytest.mark.parametrize(
    "case", FIRST_COMPILED.values(), ids=FIRST_COMPILED.keys()
)
#: fewer blocks, lengths and groups of queries to trace: the others are traced alike
SHORTER = {
    "sasrec": {"model__blocks": 1, "model__max_length": 5},
    "tisasrec": {"model__blocks": 1, "model__max_length": 5},
    "conve": {"training__batch_size": 16, "model__group": 16},
}
each_trained = pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.label)


def train(case: ModelCase, out: Path, **settings: Any) -> api.Result:
    """A short run: 50 users in batches of 8 are 7 steps an epoch."""
    everyday = {"training.epochs": 2, "training.batch_size": 8, "device": DEVICE, "threads": 1}
    if DEVICE != "cpu":
        everyday["training.deterministic"] = True
    products = Supports.of(load_model(case.model)).precision
    if DEVICE.startswith("cuda") and products:  # TF32 rounds by more than the limits of these tests
        everyday["training.matmul"] = "highest"
    if not case.trains:  # fitted in one pass: options of gradient steps are refused
        everyday = {"device": DEVICE, "threads": 1}
    merged = {**everyday, **case.settings, **{k.replace("__", "."): v for k, v in settings.items()}}
    return api.train(case.model, case.data, settings=merged, out=str(out), quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[..., api.Result]:
    """A function that trains a case once with the same settings; its runs are only read."""
    folder = tmp_path_factory.mktemp("trained")

    @cache
    def run_of(case: str, **settings: Any) -> api.Result:
        out = folder / "-".join([case, *map(str, settings.values())])
        return train(next(each for each in CASES if each.label == case), out, **settings)

    return lambda case, **settings: run_of(case.label, **settings)


@each
def test_trains_and_reports(case, trained):
    result = trained(case)
    if case.triples:
        assert set(result.metrics) == {"mrr", "hits@1", "hits@3", "hits@10", "mr", "amri"}
        assert result.metrics["mr"] >= 1
        assert "filtered ranking of 30 entities" in result.protocol
    else:
        assert {"ndcg@10", "recall@20", "ndcg@10/kept", "recall@20/kept"} == set(result.metrics)
        assert all(0 <= value <= 1 for value in result.metrics.values())
        assert "full ranking" in result.protocol
    for name in ("config.yaml", "environment.json", "data.json", "metrics.json", "metrics.jsonl"):
        assert (result.path / name).is_file(), name
    for name in ("best", "final"):
        assert (result.path / name / "manifest.json").is_file()


@each_trained
def test_learns_what_is_planted(case, tmp_path):
    usual = {"training.epochs": 30, "training.lr": 1e-2, "training.schedule": "constant"}
    usual |= {"checkpoint.every": 60, "evaluation.every": 60}
    settings = {**usual, **case.planted, **case.without_dropout}
    result = train(case, tmp_path / "run", **{k.replace(".", "__"): v for k, v in settings.items()})
    lines = [r for r in training_log(tmp_path / "run") if r["kind"] == "train"]
    assert lines[-1][case.loss] < case.left * lines[0][case.loss]
    assert result.metrics[case.metric] > 0.5


@each
def test_same_seed_same_result(case, trained, tmp_path):
    first = trained(case).path
    train(case, tmp_path / "b")
    assert_same(first, tmp_path / "b")
    assert training_log(first) == training_log(tmp_path / "b")


@each_trained
def test_averages_stand_beside_the_same_weights(case, tmp_path):
    """What training.average keeps is another model; what training goes on from is not."""
    train(case, tmp_path / "plain", training__epochs=1, training__average=None)
    train(case, tmp_path / "run", training__epochs=1, training__average=1)
    plain, found = (read_checkpoint(tmp_path / name / "final").tensors for name in ("plain", "run"))
    assert plain["weights"].keys() == found["weights"].keys()
    same = [torch.equal(value, found["training"][name]) for name, value in plain["weights"].items()]
    assert all(same)
    other = [torch.equal(value, found["weights"][name]) for name, value in plain["weights"].items()]
    assert not all(other)


@each_trained
def test_another_seed_another_result(case, trained, tmp_path):
    train(case, tmp_path / "b", seed=1)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(trained(case).path, tmp_path / "b")


@pytest.mark.parametrize("epochs", [4, pytest.param(34, marks=pytest.mark.slow)])
@each_trained
def test_resumes_exactly_at_any_step(case, epochs, tmp_path):
    """An unbroken run = one stopped at three random places, in mid-epoch too, and resumed."""
    settings = {
        "training__epochs": epochs,
        "checkpoint__every_steps": 5,
        "checkpoint__keep": 500,
        "evaluation__every": 3 if epochs == 4 else 7,
    }
    train(case, tmp_path / "whole", **settings)
    saved = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    assert read_checkpoint(saved[-1]).state["position"]["step"] >= 6 * epochs
    places = [read_checkpoint(path, groups=()).state["position"] for path in saved[:-1]]
    halfway = [n for n, place in enumerate(places) if place["step_of_epoch"]]
    stops = {halfway[0], *np.random.default_rng(4).choice(len(places), 2, replace=False)}
    for stop in stops:
        copy = tmp_path / f"stopped-{stop}"
        others = [path.name for path in saved if path != saved[stop]]
        shutil.copytree(tmp_path / "whole", copy, ignore=shutil.ignore_patterns(*others))
        run.resume(copy, changes={"checkpoint.every_steps": None}, quiet=True)
        assert_same(copy, tmp_path / "whole")
        assert training_log(copy) == training_log(tmp_path / "whole")


@each_trained
def test_micro_batches_change_nothing(case, tmp_path):
    off = {k.replace(".", "__"): v for k, v in case.without_dropout.items()}
    off["training__lr"] = 1e-3
    train(case, tmp_path / "1", **off)
    # of the last batch, of two rows, some are empty
    train(case, tmp_path / "4", training__accumulate=4, **off)
    assert_close(tmp_path / "1", tmp_path / "4", 1e-5)


@each
def test_saves_and_reloads_to_the_same_scores(case, trained):
    result = trained(case)
    dataset = result.loaded.dataset
    task = ranking_task(dataset, TEST, result.loaded.config.evaluation, 0)
    queries = task.queries
    with torch.inference_mode():
        first = result.loaded.model.scorer(queries).block(0, task.item_count)
        again = api.load(result.path).model.scorer(queries).block(0, task.item_count)
    assert first.shape == (len(queries), task.item_count)
    assert torch.isfinite(first).all()
    assert torch.equal(first, again)


@each
def test_evaluates_the_same_in_any_share(case, trained):
    """Metrics of one checkpoint from 1, 2 and 3 shares of the queries are identical."""
    loaded = trained(case).loaded
    task = ranking_task(loaded.dataset, TEST, loaded.config.evaluation, 0)
    names, device = ["ndcg@10", "mrr"], loaded.device
    values = [metrics_of_shares(loaded.model, task, names, parts, device) for parts in (1, 2, 3)]
    assert values[0] == values[1] == values[2]


@each
def test_recommends_from_the_folder_alone(case, tmp_path):
    result = train(case, tmp_path / "run")
    moved = tmp_path / "elsewhere"
    (tmp_path / "run").rename(moved)
    if case.triples:
        asked = [{"head": 3, "relation": "next"}, {"relation": "next", "tail": 4}]
        table = api.load(moved).predict(asked, topk=4).to_table().to_pydict()
        assert table["head"][:4] == [3] * 4
        assert table["tail"][4:] == [4] * 4
        assert table["rank"] == [1, 2, 3, 4] * 2
        assert 4 not in table["tail"][:4]  # known
        assert 3 not in table["head"][4:]
        return
    frame = api.load(moved).recommend(users=[3, 5], topk=4).to_table().to_pydict()
    assert frame["user_id"] == [3] * 4 + [5] * 4
    assert frame["rank"] == [1, 2, 3, 4] * 2
    seen = sequences()
    for user, item in zip(frame["user_id"], frame["item_id"], strict=True):
        assert not ((seen["user_id"] == user) & (seen["item_id"] == item)).any()
    assert result.summary.model == case.model


@each
def test_every_option_is_documented(case):
    options = load_model(case.model).Options
    for name, field in options.model_fields.items():
        if name != "name":
            assert field.description, f"{case.model}: option {name} has no description"


@each_trained
def test_recompute_changes_no_number(case, trained, tmp_path):
    if not Supports.of(load_model(case.model)).recompute:
        with pytest.raises(ConfigurationError, match="no effect"):
            train(case, tmp_path / "recomputed", training__recompute=True)
        return
    train(case, tmp_path / "recomputed", training__recompute=True)
    assert_same(trained(case).path, tmp_path / "recomputed")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@each_compiled_model
def test_compiles_what_is_called(case, backend, monkeypatch, tmp_path):
    """Traced and differentiated, and compiled with all products as those of large data."""
    compile_function = torch.compile

    def traced(function, **_):
        return compile_function(function, backend=backend, dynamic=True)

    monkeypatch.setattr(torch, "compile", traced)
    monkeypatch.setattr(product, "MIN_SPLIT_PRODUCT", 0)
    faster = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    monkeypatch.setattr(product, "onednn_is_faster", lambda: faster)
    shorter = SHORTER.get(case.model, {}) if backend == "aot_eager" else {}
    result = train(
        case, tmp_path / "run", training__epochs=1, training__compile="default", **shorter
    )
    reports = result.summary.effective["compile"]
    assert reports
    for report in reports:
        assert report["in_effect"] == ("nothing to compile" not in report["note"])
        assert report["in_effect"] == (report["graphs"] > 0)


@each_compiled
def test_what_was_compiled_is_put_back_where_it_does_not_pay(case, monkeypatch, tmp_path):
    """With a compiler that makes nothing: it is called in the probe, and never again."""
    calls, probed = [], []

    def compiler(function, **_):
        def called(*arguments, **names):
            calls.append(function)
            return function(*arguments, **names)

        return called

    def probe(*arguments):
        report = compile_step(*arguments)
        probed.append((report, len(calls)))
        return report

    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr(trainer, "compile_step", probe)
    train(case, tmp_path / "run", training__epochs=1, training__compile="auto")
    for report, _ in probed:
        assert not report.in_effect
        assert ("nothing to compile" in report.note) == (report.compiled_ms is None)
    compiles = any(report.compiled_ms is not None for report, _ in probed)
    assert compiles == (len(calls) > 0)
    assert len(calls) == probed[-1][1]


@each_trained
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_follows_float32(case, precision, trained, tmp_path):
    if not Supports.of(load_model(case.model)).precision:
        with pytest.raises(ConfigurationError, match="no effect"):
            train(case, tmp_path / "low", training__precision=precision)
        return
    usual: dict[str, Any] = {"training__epochs": 3}
    if DEVICE != "cpu":  # masks of dropout differ between precisions
        usual |= {k.replace(".", "__"): v for k, v in case.without_dropout.items()}
    with padded_like_bf16():  # the same dropout masks
        plain = trained(case, **usual)
    low_precision = {**usual, "training__precision": precision}
    if precision == "fp16":
        low_precision["training__emulate_fp16"] = True
    train(case, tmp_path / "low", **low_precision)
    full, low = (
        [r[case.loss] for r in training_log(path) if r["kind"] == "train"]
        for path in (plain.path, tmp_path / "low")
    )
    # with fp16 the scaler may leave out a first step, which the mean then lacks
    assert low == pytest.approx(full, rel=5e-3 if precision == "bf16" else 4e-2)
    assert low != full

"""Finished runs are compared in pairs of seeds and users, or refused."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hasten
from hasten.cli.main import main
from hasten.comparison import pairs as pairs_module
from hasten.comparison import values as values_module
from hasten.comparison.run import compare_finished
from hasten.comparison.values import unit_values
from hasten.comparison.verdict import Criteria, Margin, Outcome
from hasten.errors import RunFolderError, UsageError
from hasten.evaluation import tile_inputs
from hasten.evaluation.protocols import ranking_task
from hasten.loaded_run import load_run
from hasten.runs.run_folder import RunFolder
from tests.training.test_memory_recovery import failing

ONE_PERCENT = Margin(0.01, True)


def compare(runs, *names, **given):
    return compare_finished([runs / name for name in names], Criteria(ONE_PERCENT, **given))


@pytest.mark.parametrize("name", ["base-0", "fast"])
def test_the_values_of_users_have_the_metrics_of_the_run_as_their_mean(runs, name):
    run = runs / name
    summary = json.loads((run / "metrics.json").read_text())
    for part in ("valid", "test"):
        metrics = [metric for metric in summary[part] if "/" not in metric]
        found = unit_values(run, part, metrics, None)
        means = {metric: found.mean(metric) for metric in metrics}
        assert means == pytest.approx({metric: summary[part][metric] for metric in metrics})


def test_both_directions_of_a_triple_are_one_unit(runs):
    found = unit_values(runs / "fast", "valid", ["mrr"], None)
    loaded = load_run(runs / "fast")
    task = ranking_task(loaded.dataset, 1, loaded.config.evaluation, 0)
    assert len(found.units) == len(task.triple) // 2
    assert (found.weights["mrr"] == 2).all()


def test_the_values_of_users_are_read_again_from_the_folder(runs, tmp_path, monkeypatch):
    first = unit_values(runs / "base-0", "valid", ["ndcg@10"], tmp_path)
    monkeypatch.setattr(values_module, "load_run", None)
    again = unit_values(runs / "base-0", "valid", ["ndcg@10"], tmp_path)
    assert again.protocol == first.protocol
    assert np.array_equal(again.sums["ndcg@10"], first.sums["ndcg@10"])
    with pytest.raises(TypeError):  # of another part it would load the run
        unit_values(runs / "base-0", "test", ["ndcg@10"], tmp_path)


def test_values_are_found_with_less_memory(runs, monkeypatch):
    expected = unit_values(runs / "base-0", "valid", ["ndcg@10"], None)
    count = failing(monkeypatch, tile_inputs, "rank_all", {1})
    found = unit_values(runs / "base-0", "valid", ["ndcg@10"], None)
    assert count[0] > 1
    assert found.sums["ndcg@10"] == pytest.approx(expected.sums["ndcg@10"], abs=1e-5)


def test_damaged_values_are_found_again(runs, tmp_path):
    first = unit_values(runs / "base-0", "valid", ["ndcg@10"], tmp_path)
    (file,) = tmp_path.iterdir()
    for content in (b"", file.read_bytes()[:200]):
        file.write_bytes(content)
        again = unit_values(runs / "base-0", "valid", ["ndcg@10"], tmp_path)
        assert np.array_equal(again.sums["ndcg@10"], first.sums["ndcg@10"])


def test_runs_that_differ_only_in_their_seed_are_one_setting(runs):
    found = compare(runs, "base-0", "wide-1", "wide-0", "base-1")
    assert found.baseline.seeds == (0, 1)
    (wide,) = found.alternatives
    assert wide.setting.name == "model.width=16"
    assert wide.differences["ndcg@10"].seeds == 2
    of_runs = {
        name: json.loads((runs / name / "metrics.json").read_text())["valid"]["ndcg@10"]
        for name in ("base-0", "base-1", "wide-0", "wide-1")
    }
    base, alternative = (
        (of_runs[f"{kind}-0"] + of_runs[f"{kind}-1"]) / 2 for kind in ("base", "wide")
    )
    assert found.baseline.means["ndcg@10"] == pytest.approx(base)
    assert wide.differences["ndcg@10"].estimate == pytest.approx(alternative / base - 1)
    assert wide.speed is not None
    assert wide.speed.low < wide.speed.estimate < wide.speed.high
    assert wide.memory is not None


def test_the_same_settings_again_are_equivalent(runs):
    found = compare(runs, "base-0", "again")
    assert found.verdicts() == {"same settings again": "equivalent"}
    assert found.alternatives[0].differences["ndcg@10"].interval() == (0, 0)
    assert "one seed" in found.notes[0]


def test_the_machine_and_the_versions_are_named(runs):
    (where,) = compare(runs, "base-0", "wide-0").trained_on
    assert re.search(r"\d cores, torch 2\.\d+.*, hasten \d", where)


def test_runs_without_a_partner_are_named(runs):
    found = compare(runs, "base-0", "wide-0", "base-1")
    assert found.notes[0] == f"model.width=16: left out, without a partner: {runs / 'base-1'}"
    other = compare(runs, "base-0", "wide-1")
    assert other.alternatives[0].differences["ndcg@10"].seeds == 1


def test_a_knowledge_graph_is_compared_by_triples(runs):
    found = compare(runs, "slow", "fast")
    assert found.units == "triples"
    assert found.metric == "mrr"
    assert found.alternatives[0].setting.name == "lr=0.02"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["base-0", "fewer"], r"fewer and .*base-0 cannot be compared: other data \(fewer: "),
        (["base-0", "kept"], "cannot be compared: other protocols .evaluation.mask_history is F"),
        (["base-0", "slow"], "cannot be compared: other parts of the data"),
        (["base-0", "base-1"], "differ only in their seeds"),
        (["base-0"], "name at least two runs"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs, names, message):
    with pytest.raises(UsageError, match=message):
        compare(runs, *names)


def test_a_model_that_reads_features_is_compared_with_one_that_does_not(tmp_path):
    """Also with one that reads other features. Other interactions are refused."""
    rng = np.random.default_rng(0)
    events = {"user_id": np.repeat(np.arange(20), 6), "item_id": rng.permutation(120) % 30}
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((30, 4), dtype=np.float32))

    def train(model, name, feature=None, events=events):
        settings = {"epochs": 1, "threads": 1, "model.width": 4, "data.split": "ratio"}
        if feature:
            settings["data.features"] = {"text": str(tmp_path / f"{feature}.npy")}
        out = tmp_path / name
        return hasten.train(model, events, settings=settings, out=out, quiet=True).path

    plain, first = train("lightgcn", "plain"), train("freedom", "first", "a")
    found = compare_finished([plain, first], Criteria(ONE_PERCENT))
    assert found.alternatives[0].setting.name.startswith("model=freedom")
    found = compare_finished([first, train("freedom", "second", "b")], Criteria(ONE_PERCENT))
    assert found.alternatives[0].setting.name.startswith("data.features.text=")
    changed = {**events, "item_id": (events["item_id"] + events["user_id"]) % 30}
    with pytest.raises(UsageError, match="other data"):
        compare_finished([plain, train("lightgcn", "other", events=changed)], Criteria(ONE_PERCENT))


def test_a_graph_is_compared_with_and_without_features_of_its_nodes(tmp_path):
    head = "relation,x_id,x_type,x_name,y_id,y_type,y_name\n"
    links = "".join(
        f"treats,d{i},drug,d{i},s{(i * j) % 10},disease,s\n" for i in range(30) for j in (1, 3, 7)
    )
    (tmp_path / "links.csv").write_text(head + links)
    table = {"id": [f"d{i}" for i in range(30)], "f": np.linspace(-1, 1, 30)}
    pq.write_table(pa.table(table), tmp_path / "drug.parquet")
    read = {"data.features.drug": str(tmp_path / "drug.parquet"), "model.inputs": "features"}
    runs = [
        hasten.train(
            "hgt",
            tmp_path / "links.csv",
            settings={"epochs": 1, "threads": 1, "model.width": 16, "model.hidden": 8, **given},
            out=tmp_path / name,
            quiet=True,
        ).path
        for name, given in (("plain", {}), ("with", read))
    ]
    found = compare_finished(runs, Criteria(ONE_PERCENT))
    assert "model.inputs=features" in found.alternatives[0].setting.name


def test_other_parts_of_the_same_data_are_refused(tmp_path):
    """The split depends on the seed, unless it has a seed of its own."""

    def train(name, seed, **settings):
        settings |= {"epochs": 1, "threads": 1, "model.width": 4, "data.split": "ratio"}
        settings |= {"data.ratio_order": "random", "evaluation.test": False}
        data = {"user_id": [1, 1, 1, 2, 2, 2, 3, 3, 3] * 4, "item_id": list(range(12)) * 3}
        out = tmp_path / name
        return hasten.train("bprmf", data, settings=settings, seed=seed, out=out, quiet=True).path

    other = [train("a", 0), train("b", 1)]
    with pytest.raises(UsageError, match=r"--set data\.split_seed=0 gives the runs of all seeds"):
        compare_finished(other, Criteria(ONE_PERCENT))
    fixed = [train("c", 0, **{"data.split_seed": 5}), train("d", 1, **{"data.split_seed": 5})]
    with pytest.raises(UsageError, match="differ only in their seeds"):
        compare_finished(fixed, Criteria(ONE_PERCENT))


def test_an_unfinished_run_is_refused(runs, tmp_path):
    (tmp_path / "config.yaml").write_text((runs / "base-0" / "config.yaml").read_text())
    with pytest.raises(RunFolderError, match="not finished yet: continue it with  hasten resume"):
        compare_finished([tmp_path, runs / "base-0"], Criteria(ONE_PERCENT))


@pytest.mark.parametrize("name", ["metrics.json", "data.json"])
def test_a_damaged_run_is_refused(runs, tmp_path, name):
    shutil.copytree(runs / "base-0", tmp_path / "run")
    (tmp_path / "run" / name).write_text("{}")
    with pytest.raises(RunFolderError, match=rf"{name}: damaged"):
        compare_finished([runs / "wide-0", tmp_path / "run"], Criteria(ONE_PERCENT))


def test_a_run_that_goes_on_is_refused(runs, tmp_path):
    shutil.copytree(runs / "base-0", tmp_path / "run")
    with (
        RunFolder.open(tmp_path / "run", lock=True),
        pytest.raises(RunFolderError, match=r"run: in use by process \d+ .*when it has ended"),
    ):
        compare_finished([tmp_path / "run", runs / "wide-0"], Criteria(ONE_PERCENT))
    compare_finished([tmp_path / "run", runs / "wide-0"], Criteria(ONE_PERCENT))


def test_one_user_is_too_few(runs, monkeypatch):
    def first(*given):
        found = unit_values(*given)
        sums, weights = ({k: v[:1] for k, v in of.items()} for of in (found.sums, found.weights))
        return replace(found, units=found.units[:1], sums=sums, weights=weights)

    monkeypatch.setattr(pairs_module, "unit_values", first)
    with pytest.raises(UsageError, match="the valid part has fewer than two users"):
        compare(runs, "base-0", "base-1", "wide-0", "wide-1")


def test_a_speed_that_is_not_known_is_left_out(runs, tmp_path):
    shutil.copytree(runs / "base-0", tmp_path / "run")
    told = json.loads((tmp_path / "run" / "metrics.json").read_text())
    (tmp_path / "run" / "metrics.json").write_text(
        json.dumps({**told, "examples_per_second": None})
    )
    found = compare_finished([tmp_path / "run", runs / "wide-0"], Criteria(ONE_PERCENT))
    assert found.alternatives[0].speed is None
    assert found.alternatives[0].time is not None


def test_files_of_the_user_are_not_replaced(runs, tmp_path):
    (tmp_path / "index.html").write_text("mine")
    names = [runs / "base-0", runs / "wide-0"]
    with pytest.raises(RunFolderError, match=r"not empty and not a comparison .it holds index"):
        hasten.compare(*names, out=tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"
    for _ in range(2):
        hasten.compare(*names, out=tmp_path / "new")


def test_a_margin_can_be_absolute(runs):
    margin = Margin(0.9, False)
    found = compare_finished([runs / "base-0", runs / "wide-0"], Criteria(margin))
    assert found.verdicts() == {"model.width=16": "equivalent"}
    means = found.alternatives[0].setting.means, found.baseline.means
    expected = means[0]["ndcg@10"] - means[1]["ndcg@10"]
    assert found.alternatives[0].differences["ndcg@10"].estimate == pytest.approx(expected)


@pytest.mark.parametrize(("loss", "verdict"), [(0.02, "worse"), (0.001, "equivalent")])
def test_a_planted_loss_is_found_or_within_the_margin(runs, monkeypatch, loss, verdict):
    """Each user of the alternative loses about this share of the baseline's metric."""
    whole, rng = unit_values, np.random.default_rng(0)

    def planted(run, part, metrics, *rest):
        found = whole(runs / "base-0", part, metrics, *rest)
        if "wide" in run.name:
            for name, values in found.sums.items():
                kept = 1 - loss + 0.003 * rng.standard_normal(len(values))
                found.sums[name] = values * kept
        return found

    monkeypatch.setattr(pairs_module, "unit_values", planted)
    found = compare(runs, "base-0", "base-1", "wide-0", "wide-1")
    assert found.verdicts() == {"model.width=16": verdict}
    assert found.alternatives[0].differences["ndcg@10"].estimate == pytest.approx(-loss, abs=0.002)


def test_the_command_prints_a_table_or_json(runs, capsys, tmp_path):
    names = [str(runs / name) for name in ("base-0", "base-1", "wide-0", "wide-1")]
    assert main(["compare", *names, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    header, base, wide = shown.out.splitlines()
    assert header.split()[:3] == ["setting", "seeds", "ndcg@10"]
    assert base.startswith("baseline")
    assert wide.startswith("model.width=16")
    assert "30 users; margin 1 %, set beforehand" in shown.err
    assert main(["compare", *names, "--metric", "recall@20", "--part", "test", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["metric"], found["part"]) == ("recall@20", "test")
    (alternative,) = found["alternatives"]
    assert alternative["verdict"]["outcome"] in get_args(Outcome)
    assert math.isfinite(alternative["differences"]["ndcg@10"]["seed_variance"])
    assert set(alternative["speed"]) == {"estimate", "low", "high"}
    assert main(["compare", *names, "--part", "train"]) == 2
    assert main(["compare", *names, "--margin", "much"]) == 2

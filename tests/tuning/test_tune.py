"""A tuning in a folder: reproducible, interrupted and continued, within its budget."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import hasten
from hasten import run as runs
from hasten.cli.main import main
from hasten.config_loading.build import build_config
from hasten.errors import HastenError, Interrupted, RunFolderError, UsageError
from hasten.models.search_space import Choice, Range
from hasten.registry import BUILT_IN
from hasten.tuning import search as searching
from hasten.tuning import study
from hasten.tuning import tune as tuning
from hasten.tuning.search import Limits, Search
from hasten.tuning.space import search_space
from tests.comparison.conftest import EVENTS

SMALL = {
    "model.width": 8, "model.max_length": 8, "model.blocks": 1, "threads": 1, "epochs": 5,
    "batch_size": 15, "evaluation.every": 1, "training.average": None,
}  # fmt: skip
SPACE = {"lr": "1e-3..3e-2", "model.loss": "ce,sampled-softmax", "model.negatives": [2, 4]}


@pytest.fixture
def events(tmp_path) -> Path:
    (tmp_path / "events.csv").write_text(EVENTS)
    return tmp_path / "events.csv"


def tune(events, out, **given):
    given = {"settings": SMALL, "search": SPACE, "trials": 4, "quiet": True, **given}
    return hasten.tune("sasrec", events, out=out, **given)


def rows(found):
    return [{k: v for k, v in trial.items() if k != "seconds"} for trial in found.trials]


def test_an_interrupted_tuning_continues_as_if_it_had_not_stopped(events, tmp_path, monkeypatch):
    whole = tune(events, tmp_path / "whole")
    calls = []

    def interrupted(name):
        function = getattr(runs, name)

        def call(*args, **given):
            calls.append(name)
            if len(calls) in (3, 8):
                raise Interrupted("stop", 2)
            found = function(*args, **given)
            if len(calls) == 5:  # killed before the result was kept
                raise Interrupted("stop", 2)
            return found

        return call

    for name in ("train", "resume"):
        monkeypatch.setattr(runs, name, interrupted(name))
    for _ in range(3):
        with pytest.raises(Interrupted, match="repeat the command with  --out"):
            tune(events, tmp_path / "parts")
    parts = tune(events, tmp_path / "parts")
    assert rows(parts) == rows(whole)
    assert parts.test == whole.test
    assert len(whole.trials) == 4
    assert whole.trials[0]["settings"] != whole.trials[1]["settings"]
    for trial in whole.trials:  # an option without effect is not searched
        loss = trial["settings"]["model.loss"]
        assert ("model.negatives" in trial["settings"]) == (loss != "ce")


def test_a_promoted_trial_is_the_run_that_never_stopped(events, tmp_path):
    found = tune(events, tmp_path / "tuning", test=False)
    trial = max(found.trials, key=lambda each: each["epochs"])
    assert trial["epochs"] == 5
    settings = {**SMALL, "data.split_seed": 0, **trial["settings"]}
    settings = {key: value for key, value in settings.items() if key != "lr"}
    once = hasten.train("sasrec", events, settings=settings, out=tmp_path / "once", quiet=True)
    assert once.valid_metrics["ndcg@10"] == trial["valid"]


def test_the_recipe_repeats_the_selected_run_and_the_test_part_is_opened_once(events, tmp_path):
    found = tune(events, tmp_path / "tuning", settings={**SMALL, "lr": 1e-5}, search={
        "model.dropout": "0.1,0.2", "model.loss": "ce,bce"})  # fmt: skip
    assert all(not json.loads(file.read_text())["test"] for file in
               (tmp_path / "tuning" / "runs").glob("*/metrics.json"))  # fmt: skip
    run = tmp_path / "again"
    words = ["train", "sasrec", str(events), "--recipe", str(found.recipe), "--quiet"]
    assert main([*words, "--threads", "1", "--out", str(run)]) == 0
    again = json.loads((run / "metrics.json").read_text())
    assert again["valid"]["ndcg@10"] == found.selected["valid"]
    assert found.test is not None
    assert again["test"] == found.test["selected"]
    repeated = tune(events, tmp_path / "tuning", settings={**SMALL, "lr": 1e-5}, search={
        "model.dropout": "0.1,0.2", "model.loss": "ce,bce"})  # fmt: skip
    assert repeated == found
    with pytest.raises(RunFolderError, match="its test part was evaluated"):
        tune(events, tmp_path / "tuning", trials=9, settings={**SMALL, "lr": 1e-5}, search={
            "model.dropout": "0.1,0.2", "model.loss": "ce,bce"})  # fmt: skip
    with pytest.raises(RunFolderError, match="holds another tuning"):
        tune(events, tmp_path / "tuning")


def test_a_tuning_without_test_goes_on(events, tmp_path):
    first = tune(events, tmp_path / "tuning", trials=2, test=False)
    assert first.test is None
    more = tune(events, tmp_path / "tuning", trials=3)
    assert rows(more)[1]["settings"] == rows(first)[1]["settings"]
    assert len(more.trials) == 3
    assert set(more.test or {}) == {"selected", "defaults"}


def test_failed_trials_are_left_out(events, tmp_path):
    heads = {"model.heads": [2, 3]}
    found = tune(events, tmp_path / "tuning", search=heads, trials=6, test=False, baseline="once")
    failed = [trial for trial in found.trials if trial["error"]]
    assert 0 < len(failed) < 6
    assert all("must divide width" in trial["error"] for trial in failed)
    with pytest.raises(HastenError, match="5 trials in a row failed"):
        tune(events, tmp_path / "bad", search={"model.heads": [3, 5]}, trials=9)


@pytest.fixture
def simulated(monkeypatch, events, tmp_path):
    """A search whose runs take as long as they say, on a clock of its own."""
    clock = SimpleNamespace(now=0.0, cut=0)
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(searching, "load_config", lambda _: clock.config)
    done: dict[Path, int] = {}

    def train(self, path, config, until, left):
        until = until or 9
        begin, seconds = done.get(path, 0), 3.0 if "002" in path.name else 1.0
        reached = min(until, begin + int(left // seconds))
        done[path] = reached
        clock.now += (reached - begin) * seconds
        value = 0.5 + 0.1 * ("002" in path.name)
        stopped = "epochs" if reached == until else "max_time"
        return SimpleNamespace(valid={"ndcg@10": value}, epochs=reached, stopped_by=stopped)

    monkeypatch.setattr(Search, "_train", train)

    def start(seconds, equal=True):
        clock.config = build_config("sasrec", str(events), None, (), {**SMALL, "epochs": 9})
        space = {"training.lr": Range(1e-3, 1e-1, log=True)}
        (tmp_path / "simulated").mkdir(exist_ok=True)
        limits = Limits(seconds, None, equal)
        return Search(tmp_path / "simulated", clock.config, space, limits, lambda _: None)

    return start


def test_half_of_the_budget_is_for_the_defaults(simulated):
    found = simulated(100.0)
    found.run()
    assert 40 < found.spent("search") <= 50
    assert len(found.defaults) == 5
    assert found.spent("defaults") == 45
    ends = [trial.number for trial in found.study.trials() if 9 in trial.scores]
    assert ends[0] == 2  # the best trial reached the last rung


def test_the_search_has_all_but_one_run_of_the_defaults(simulated):
    found = simulated(60.0, equal=False)
    found.run()
    assert len(found.defaults) == 1
    assert 45 < found.spent("search") <= 51


def test_a_budget_too_small_for_the_defaults_is_refused_and_kept(simulated):
    with pytest.raises(HastenError, match=r"half of the budget \(4 s\) .* epoch 4"):
        simulated(8.0).run()
    found = simulated(40.0)
    found.run()
    assert found.spent("defaults") <= 20


def test_what_cannot_be_tuned_is_refused(events, tmp_path, monkeypatch):
    for given, message in (
        ({"trials": None}, "give a budget"),
        ({"search": {"model.widht": "1,2"}}, "did you mean 'model.width'"),
        ({"search": {"epochs": "1,2"}}, "not the length of a run"),
        ({"search": {"data.k_core": "1,2"}}, "cannot be searched"),
        ({"search": {"model.width": "8,16"}}, "is given a value too"),
        ({"search": {"lr": "1e-2..1e-3"}}, "the smaller first"),
        ({"search": {"lr": "1e-2"}}, "expected a range"),
        ({"settings": {**SMALL, "max_time": 3}}, "limited by --budget"),
        ({"baseline": "half"}, "must be equal or once"),
    ):
        with pytest.raises(UsageError, match=message):
            tune(events, tmp_path / "tuning", **given)
    with pytest.raises(UsageError, match="pop: nothing to search: it declares no options"):
        hasten.tune("pop", events, trials=2)
    monkeypatch.setattr(study, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'hasten\[tune\]'"):
        tune(events, tmp_path / "tuning")


@pytest.mark.parametrize("name", [entry.name for entry in BUILT_IN])
def test_the_values_that_a_model_declares_are_valid(name):
    model = next(entry for entry in BUILT_IN if entry.name == name).load()
    if not model.search:
        return
    for key, values in search_space(model, (), {}).items():
        ends = values.values if isinstance(values, Choice) else (values.low, values.high)
        for value in ends:
            flags = {key: value}
            # an option that has an effect only with the last value of another one
            condition = {"model.negatives": "model.loss", "model.l2": "model.ids"}.get(key, "")
            if condition in model.search:
                flags[condition] = model.search[condition].values[-1]
            build_config(name, None, None, (), flags)


def test_a_fitted_model_is_tuned_without_rungs(events, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["tune", "itemknn", str(events), "--trials", "7", "--threads", "1", "--out", "t"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["trials"]) == 7
    assert set(found["importance"]) <= {"model.neighbors", "model.shrinkage", "model.weighting"}
    assert found["importance"]
    assert (tmp_path / "t" / tuning.PLOT).is_file()
    assert list(found["defaults"]["seeds"]) == ["0"]

"""Sealed test sets: validation selects, and the test figures are computed once."""

import json
from dataclasses import replace

import pytest

from experiments import queue as queue_module
from experiments.definitions import EXPERIMENTS
from experiments.experiment import seeds
from experiments.opening import OPENED, OpeningError, append_opened, open_group, read_opened
from experiments.queue import judge_again, main, run_queue
from experiments.summary import RESULTS, document, load_configurations

GROUP = "sasrec-toy-loss"


@pytest.fixture
def group(queue, monkeypatch):
    monkeypatch.setattr("experiments.summary.draw", lambda *_: None)  # it is slow
    plain = seeds("plain", "sasrec", "toy", "--lr 1", "loss", count=2, also=("--set a=1",))
    better = seeds("better", "sasrec", "toy", "--better", "loss", count=2, also=("--set a=1",))
    other = seeds("other", "sasrec", "toy", "", "another", count=1)
    experiments = [*plain, *better, *other]
    assert run_queue(queue, experiments) == 0
    return queue, experiments


def test_before_opening_no_test_figure_is_computed_or_shown(group, capfd):
    queue, experiments = group
    for path in queue.results.glob("*.json"):
        assert '"test"' not in path.read_text()
    assert "test" not in capfd.readouterr().err
    configurations = load_configurations(queue.results)
    assert set(configurations) == {e.configuration for e in experiments}
    assert document(configurations).count("| sealed |") == 3


def test_validation_selects_and_only_its_choice_is_evaluated_on_test(group):
    queue, experiments = group
    entry = open_group(queue, GROUP, experiments)
    assert entry["selected"] == "better"
    assert entry["metric"] == "ndcg@10"
    assert entry["valid"] == {
        "plain": [{"seed": 0, "ndcg@10": 0.2}, {"seed": 1, "ndcg@10": 0.21}],
        "better": [{"seed": 0, "ndcg@10": 0.4}, {"seed": 1, "ndcg@10": 0.41}],
    }
    assert [each["test"] for each in entry["test"]] == [{"ndcg@10": 0.1}, {"ndcg@10": 0.11}]
    assert entry["test"][0]["also"] == [{"protocol": "--set a=1", "test": {"ndcg@10": 0.1}}]
    assert entry["test_seen_before"] == []
    assert {"date", "commit"} <= set(entry)
    assert json.loads((queue.results / OPENED).read_text()).items() >= entry.items()
    page = document(load_configurations(queue.results))
    assert page.count("| sealed |") == 2
    assert f"ndcg@10 0.1050 ± 0.0071 (opened {entry['date']})" in page


def test_a_group_is_opened_once_and_when_it_is_complete(group):
    queue, experiments = group
    with pytest.raises(OpeningError, match=r"no group .*sasrec-toy-another, sasrec-toy-loss"):
        open_group(queue, "nothing", experiments)
    (waiting,) = seeds("third", "sasrec", "toy", "--lr 3", "loss", count=1)
    with pytest.raises(OpeningError, match="not finished: third-seed0"):
        open_group(queue, GROUP, [*experiments, waiting])
    open_group(queue, GROUP, experiments)
    with pytest.raises(OpeningError, match="was opened on"):
        open_group(queue, GROUP, experiments)


def test_an_opened_group_grows_by_runs_of_what_was_selected_alone(group):
    queue, experiments = group
    open_group(queue, GROUP, experiments)
    later = [
        *seeds("plain", "sasrec", "toy", "--lr 1", "loss", count=2, also=("--set a=1",)),
        *seeds("better", "sasrec", "toy", "--better", "loss", count=3, also=("--set a=1",)),
    ]
    with pytest.raises(OpeningError, match="not finished: better-seed2"):
        open_group(queue, GROUP, later)
    assert run_queue(queue, later) == 0
    assert ", 2 of 3 seeds)" in document(load_configurations(queue.results))
    rival = seeds("rival", "sasrec", "toy", "--lr 2", "loss", count=1)
    with pytest.raises(OpeningError, match="to compare further configurations"):
        open_group(queue, GROUP, [*later, *rival])
    path = queue.result(later[0])  # plain would be selected now
    path.write_text(path.read_text().replace("0.2", "0.9"))
    entry = open_group(queue, GROUP, later)
    assert entry["selected"] == "better"
    assert [each["seed"] for each in entry["test"]] == [2]
    records = load_configurations(queue.results)["better"]
    assert [record["opened"]["seed"] for record in records] == [0, 1, 2]
    with pytest.raises(OpeningError, match="was opened on"):
        open_group(queue, GROUP, later)


def test_the_record_only_grows(group):
    queue, experiments = group
    open_group(queue, GROUP, experiments)
    append_opened(queue.results, {"group": "later"})
    assert [entry["group"] for entry in read_opened(queue.results)] == [GROUP, "later"]
    path = queue.results / OPENED
    path.write_text(path.read_text().replace("0.41", "0.42"))
    with pytest.raises(OpeningError, match="line 2: the lines above it have changed"):
        read_opened(queue.results)


def test_runs_from_before_test_sets_were_sealed_are_marked(group):
    queue, experiments = group
    for experiment in experiments[2:4]:  # "better"
        path = queue.result(experiment)
        also = [{"protocol": "--set a=1", "test": {"ndcg@10": 0.3}}]
        old = json.loads(path.read_text()) | {"test": {"ndcg@10": 0.5}, "also": also}
        old.pop("configuration")
        path.write_text(json.dumps({**old, "group": "better"}))
    before = queue.result(experiments[2]).read_text()
    assert judge_again(queue, experiments) == 0
    assert queue.result(experiments[2]).read_text() == before
    assert "| ndcg@10 0.5000 ± 0.0000 † |" in document(load_configurations(queue.results))
    entry = open_group(queue, GROUP, experiments)
    assert entry["test_seen_before"] == ["better"]
    assert entry["test"][0]["test"] == {"ndcg@10": 0.5}


def test_configurations_that_are_selected_by_different_metrics_are_not_compared(group):
    queue, experiments = group
    path = queue.result(experiments[0])
    path.write_text(path.read_text().replace("ndcg@10", "mrr"))
    with pytest.raises(OpeningError, match="selected by mrr, ndcg@10"):
        open_group(queue, GROUP, experiments)


def test_the_command_opens_a_group_and_lists_them(group, monkeypatch, capfd):
    queue, experiments = group
    monkeypatch.setattr(queue_module, "EXPERIMENTS", tuple(experiments))
    assert main(["open", GROUP], queue) == 0
    said = capfd.readouterr().err
    assert "ndcg@10 on validation selects better" in said
    assert "seed 1: test {'ndcg@10': 0.11}" in said
    assert main(["open", GROUP], queue) == 2
    assert main(["groups"], queue) == 0
    first, second = capfd.readouterr().out.splitlines()
    assert first.startswith("opened 2")
    assert second.startswith("sealed ")
    assert second.endswith("sasrec-toy-another: other")
    with pytest.raises(SystemExit):
        main(["open"], queue)


def test_every_configuration_belongs_to_one_group_and_the_record_is_whole():
    groups = {}
    for experiment in EXPERIMENTS:
        groups.setdefault(experiment.configuration, set()).add(experiment.group)
    assert {len(found) for found in groups.values()} == {1}
    known = set.union(*groups.values())
    assert {entry["group"] for entry in read_opened(RESULTS)} <= known


def test_an_experiment_is_the_same_whatever_the_order_of_its_options():
    (one,) = seeds("a", "sasrec", "toy", "--lr 1e-3 --metrics mrr,hits --topk 1,3", count=1)
    same = "--topk 1,3 --metrics mrr,hits --set training.lr=1e-3"
    assert one.fingerprint == replace(one, options=tuple(same.split())).fingerprint
    assert one.fingerprint != replace(one, options=("--lr", "1e-3")).fingerprint

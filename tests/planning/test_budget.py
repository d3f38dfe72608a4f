"""Choosing settings for a memory budget, with a made-up cost of each setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.config_loading.build import build_config
from hasten.errors import HastenError, UsageError
from hasten.planning import budget
from hasten.planning.budget import BudgetError, fit_run, mebibytes, plan_budget
from hasten.planning.plan import OutOfMemoryError, Plan
from hasten.registry import BUILT_IN

MB = 1 << 20


def made(config, *, fixed=200, activations=800, out_of_memory_above=10**6) -> Plan:
    """A plan whose activations shrink with micro-batches and by half with recompute."""
    options = config.training
    micro = activations / options.accumulate / (2 if options.recompute else 1)
    peak = int(fixed + micro)
    if peak > out_of_memory_above:
        raise OutOfMemoryError("no more")
    seconds = 1 + 0.05 * options.accumulate + 0.3 * options.recompute
    return Plan(
        config.model.name, "sample", "cpu", {}, {"rest": peak * MB}, {"training": peak * MB},
        peak * MB, {"epoch": seconds, "total": seconds}, 1, {"epoch": 1, "measured": 1}, 0,
    )  # fmt: skip


@pytest.fixture
def costs(monkeypatch):
    """Sets the cost of a run; the settings that were probed."""
    probed: list[tuple[int, bool]] = []

    def use(**how):
        def plan(config):
            probed.append((config.training.accumulate, config.training.recompute))
            return made(config, **how)

        monkeypatch.setattr(budget, "plan_run", plan)
        return probed

    return use


CONFIG = build_config("sasrec", flags={"device": "cpu"})


def test_settings_that_fit_are_left_alone(costs):
    probed = costs()
    found = plan_budget(CONFIG, 1100 * MB)
    assert probed == [(1, False)]
    assert found.chosen is not None
    assert found.chosen.changes == {}
    assert "the settings as given fit 1,100 MiB" in found.reason


def test_the_fastest_that_fits_is_chosen(costs):
    probed = costs()
    found = plan_budget(CONFIG, 440 * MB)
    # 0.95 of the budget is 418: four micro-batches need 400, recompute alone 600
    assert probed[:3] == [(1, False), (2, False), (4, False)]
    assert found.chosen.changes == {"accumulate": 4}
    assert "instead of 1,000 MiB" in found.reason
    assert "same results up to rounding" in found.reason
    found = plan_budget(CONFIG, 640 * MB)
    assert found.chosen.changes == {"accumulate": 2}


def test_micro_batches_that_will_not_fit_are_skipped(costs):
    probed = costs()
    found = plan_budget(CONFIG, 270 * MB)  # of which 256.5 are usable: 800 / 56.5 is above 14
    assert probed[:3] == [(1, False), (2, False), (16, False)]
    assert found.chosen.changes in ({"accumulate": 16}, {"recompute": True, "accumulate": 8})
    probed.clear()
    found = plan_budget(CONFIG, 150 * MB)  # below the 200 that are not divided
    assert probed[:3] == [(1, False), (2, False), (128, False)]
    assert found.chosen is None


def test_of_micro_batches_that_a_model_refuses_the_most_it_takes_are_tried(costs, monkeypatch):
    probed = costs()
    plan = budget.plan_run

    def refusing(config):
        if config.training.accumulate > 16:
            probed.append((config.training.accumulate, config.training.recompute))
            error = HastenError("not divided into so many")
            error.code = "configuration"  # as a probe tells it
            raise error
        return plan(config)

    monkeypatch.setattr(budget, "plan_run", refusing)
    found = plan_budget(CONFIG, 150 * MB)
    assert [count for count, _ in probed[:6]] == [1, 2, 128, 64, 32, 16]
    assert found.smallest == int(225 * MB / 0.95) + 1


def test_micro_batches_are_not_halved_further_where_they_save_nothing(costs):
    probed = costs(fixed=1000, activations=0)
    found = plan_budget(CONFIG, 500 * MB)
    assert found.chosen is None
    assert {count for count, recompute in probed if not recompute} == {1, 2, 16}


def test_one_doubling_that_seems_to_save_nothing_does_not_end_the_search(costs, monkeypatch):
    """Two predictions differ by some per cent."""
    costs()
    plan = budget.plan_run

    def noisy(config):
        found = plan(config)
        more = 400 * MB * (config.training.accumulate == 2)
        return replace(found, peak_memory_bytes=found.peak_memory_bytes + more)

    monkeypatch.setattr(budget, "plan_run", noisy)
    assert plan_budget(CONFIG, 300 * MB).chosen.changes == {"accumulate": 16}


def test_out_of_memory_is_a_setting_that_does_not_fit(costs):
    costs(out_of_memory_above=700)
    found = plan_budget(CONFIG, 700 * MB)
    assert found.tried[0].plan is None
    assert found.chosen.changes == {"accumulate": 2}
    assert "instead of more than there is" in found.reason
    assert found.to_json()["tried"][0]["fits"] is False


def test_what_changes_results_is_never_chosen(costs, monkeypatch):
    monkeypatch.setattr(budget, "slow_precision", lambda *_: None)
    costs(fixed=1000, activations=0)
    found = plan_budget(CONFIG, 100 * MB)
    assert found.tried[-1].changes == {"precision": "bf16"}
    assert found.chosen is None


def test_a_budget_that_is_too_small_is_refused_with_the_smallest(costs, tmp_path):
    costs()
    with pytest.raises(BudgetError, match="are too few; the smallest budget") as refused:
        fit_run(CONFIG, 100 * MB)
    found = plan_budget(CONFIG, 100 * MB)
    assert mebibytes(found.smallest) in str(refused.value)
    assert refused.value.exit_code == 2
    config, kept = fit_run(CONFIG, found.smallest)
    assert kept["predicted"]["peak_memory_bytes"] <= found.smallest
    assert config.training.batch_size == CONFIG.training.batch_size


@pytest.mark.parametrize("model", [entry.name for entry in BUILT_IN])
def test_every_model_names_its_smallest_budget_before_it_starts(model, costs, tmp_path):
    costs()
    config = build_config(model, flags={"device": "cpu", "out": tmp_path / "run"})
    smallest = plan_budget(config, 10 * MB).smallest
    said = f"10 MiB are too few; the smallest budget .* is {mebibytes(smallest)}"
    with pytest.raises(BudgetError, match=said):
        fit_run(config, 10 * MB)
    assert not list(tmp_path.iterdir())
    assert fit_run(config, smallest)[1]["predicted"]["peak_memory_bytes"] <= smallest


def test_several_processes_are_refused():
    with pytest.raises(UsageError, match="in one process"):
        fit_run(CONFIG.model_copy(update={"devices": 2}), MB)


def test_a_run_that_is_resumed_keeps_its_settings(costs, tmp_path):
    probed = costs()
    (tmp_path / "config.yaml").touch()
    config = CONFIG.model_copy(update={"out": tmp_path})
    assert fit_run(config, MB, resume=True) == (config, None)
    assert not probed


def test_where_every_setting_runs_out_of_memory_no_smallest_budget_is_invented(costs):
    costs(out_of_memory_above=1)
    found = plan_budget(CONFIG, 500 * MB)
    assert found.smallest is None
    assert found.to_json()["smallest_budget_bytes"] is None
    with pytest.raises(BudgetError, match="no settings fit the memory of this machine: no more"):
        fit_run(CONFIG, 500 * MB)


def test_a_run_that_is_resumed_has_the_settings_that_were_chosen(costs, tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "plan.json").write_text('{"chosen": {"accumulate": 4}}')
    config = CONFIG.model_copy(update={"out": tmp_path})
    again, plan = fit_run(config, MB, resume=True)
    assert plan is None
    assert again.training.accumulate == 4

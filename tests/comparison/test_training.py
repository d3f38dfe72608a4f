"""Settings are trained interleaved within a budget, in a folder that continues."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import hasten
from hasten import run as run_module
from hasten.cli.main import main
from hasten.comparison import training
from hasten.comparison.settings import speed_switches
from hasten.config_loading.build import build_config
from hasten.errors import HastenError, RunFolderError, UsageError
from hasten.runs.config_text import config_text
from hasten.runs.summary import Summary
from tests.comparison.conftest import QUICK

WIDE, SAME = {"model.width": 16}, {"training.schedule": "constant"}


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """Training in this process instead of new ones; the names of the run folders, in order."""
    order: list[str] = []

    def train(config, count, *, quiet, resume_auto):
        assert count == 1
        order.append(config.out.name)
        return run_module.train(config, quiet=quiet, resume_auto=resume_auto)

    monkeypatch.setattr(training, "train_in_processes", train)
    return order


@pytest.fixture
def copied(monkeypatch, runs):
    """Instead of training, runs that are copies of a finished one and say to have taken 10 s."""
    order: list[str] = []

    def train(config, count, *, quiet, resume_auto):
        order.append(config.out.name)
        shutil.copytree(runs / "base-0", config.out)
        (config.out / "config.yaml").write_text(config_text(config))
        found = json.loads((config.out / "metrics.json").read_text())
        found["seconds"]["total"] = 10.0
        (config.out / "metrics.json").write_text(json.dumps(found))
        return Summary.from_json(found)

    monkeypatch.setattr(training, "train_in_processes", train)
    clock = SimpleNamespace(monotonic=lambda: 10.0 * len(order))
    monkeypatch.setattr(training, "time", clock)
    return order


def compare(runs, out, **given):
    given = {"alternatives": [SAME], **given}
    return hasten.compare(
        "sasrec", runs / "events.csv", settings=QUICK, out=out, quiet=True, **given
    )


def test_settings_are_trained_interleaved_and_compared(runs, tmp_path, trained):
    found = compare(runs, tmp_path, alternatives=[WIDE, SAME], seeds=2)
    names = ["0-baseline", "1-model.width-16", "2-training.schedule-constant"]
    assert trained == [
        *(f"{name}-seed0" for name in names),
        *(f"{names[place]}-seed1" for place in (1, 2, 0)),
    ]
    assert found.baseline.seeds == (0, 1)
    assert found.verdicts()["training.schedule=constant"] == "equivalent"
    same = found.alternatives[1].differences["ndcg@10"]
    assert (same.estimate, same.interval()) == (0, (0, 0))
    assert found.seconds_per_seed is not None
    assert found.seconds_per_seed > 0
    for run in found.baseline.runs:  # the test part stays sealed
        assert json.loads((run / "metrics.json").read_text())["test"] == {}
    result = json.loads((tmp_path / "result.json").read_text())
    assert [each["name"] for each in result["alternatives"]] == list(found.verdicts())
    assert (tmp_path / "index.html").is_file()


def test_the_test_part_is_compared_only_if_asked_for(runs, tmp_path, trained):
    found = compare(runs, tmp_path, seeds=1, part="test")
    assert found.part == "test"
    assert json.loads((found.baseline.runs[0] / "metrics.json").read_text())["test"]


def test_all_seeds_have_one_split(runs, tmp_path, trained):
    settings = {"data.split": "ratio", "data.ratio_order": "random"}
    found = compare(runs, tmp_path, seeds=2, baseline=settings)
    prints = [json.loads((run / "data.json").read_text()) for run in found.baseline.runs]
    assert prints[0]["fingerprint"] == prints[1]["fingerprint"]


def test_an_interrupted_comparison_continues(runs, tmp_path, copied, monkeypatch):
    whole = training.train_in_processes

    def fails(config, count, **given):
        if len(copied) == 3:
            raise HastenError("out of memory")
        return whole(config, count, **given)

    monkeypatch.setattr(training, "train_in_processes", fails)
    with pytest.raises(HastenError, match=r"baseline, seed 1: out of memory .repeat the command"):
        compare(runs, tmp_path, seeds=2)
    monkeypatch.setattr(training, "train_in_processes", whole)
    found = compare(runs, tmp_path, seeds=2)
    assert len(copied) == 4
    assert found.baseline.seeds == (0, 1)
    compare(runs, tmp_path, seeds=3)
    assert len(copied) == 6


def test_what_was_set_beforehand_cannot_change(runs, tmp_path, copied):
    compare(runs, tmp_path, seeds=1)
    with pytest.raises(RunFolderError, match=r"holds another comparison .margin was 1 %, and is 2"):
        compare(runs, tmp_path, seeds=1, margin="2%")
    with pytest.raises(RunFolderError, match=r"baseline\.training\.lr was 0\.01, and is 0\.1"):
        compare(runs, tmp_path, seeds=1, baseline={"lr": 0.1})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(RunFolderError, match="not empty and not a comparison"):
        compare(runs, tmp_path / "other")
    with pytest.raises(RunFolderError, match="holds a comparison with runs of its own"):
        hasten.compare(runs / "base-0", runs / "wide-0", out=tmp_path)


def test_a_comparison_that_has_trained_nothing_can_be_begun_otherwise(
    runs, tmp_path, copied, monkeypatch
):
    def fail(*_, **__):
        raise HastenError("no such file")

    works = training.train_in_processes
    monkeypatch.setattr(training, "train_in_processes", fail)
    with pytest.raises(HastenError, match="no such file"):
        compare(runs, tmp_path / "c", seeds=1, margin="2%")
    monkeypatch.setattr(training, "train_in_processes", works)
    compare(runs, tmp_path / "c", seeds=1)
    for damaged in ("[", "[]"):
        (tmp_path / "c" / "plan.json").write_text(damaged)
        with pytest.raises(RunFolderError, match=r"plan\.json: damaged"):
            compare(runs, tmp_path / "c", seeds=1)
    with pytest.raises(UsageError, match="seeds 0: must be at least 1"):
        compare(runs, tmp_path / "d", seeds=0)


def test_a_seed_that_does_not_fit_into_the_budget_is_not_begun(runs, tmp_path, copied):
    found = compare(runs, tmp_path, budget="65s")  # 20 s a seed
    assert found.baseline.seeds == (0, 1, 2)
    assert found.seconds_per_seed == 20
    more = compare(runs, tmp_path, budget=100)
    assert more.baseline.seeds == (0, 1, 2, 3, 4)
    assert len(copied) == 10


def test_a_budget_below_one_seed_says_what_is_enough(runs, tmp_path, copied):
    message = r"15 s is too small for one seed of 2 settings, which takes about 20 s; three .* 60 s"
    with pytest.raises(HastenError, match=message):
        compare(runs, tmp_path, budget=15)
    assert len(copied) == 1
    assert compare(runs, tmp_path, budget=60).baseline.seeds == (0, 1, 2)


def test_a_run_that_the_budget_ends_is_continued(runs, tmp_path, trained, monkeypatch):
    monkeypatch.setattr(training, "_MIN_RUN_SECONDS", 0.2)
    settings = {"training.epochs": 20}
    with pytest.raises(HastenError, match=r"it ended baseline, seed 0, after \d+ epochs: repeat"):
        compare(runs, tmp_path, seeds=1, baseline=settings, budget=0.1)
    found = compare(runs, tmp_path, seeds=1, baseline=settings)
    assert trained == ["0-baseline-seed0", *trained[:1], "1-training.schedule-constant-seed0"]
    epochs = [
        json.loads((run / "metrics.json").read_text())["epochs"]
        for run in (*found.baseline.runs, *found.alternatives[0].setting.runs)
    ]
    assert epochs == [20, 20]
    assert found.verdicts() == {"training.schedule=constant": "equivalent"}


def test_the_command_trains_and_prints(runs, tmp_path, capsys, trained):
    arguments = ["compare", "sasrec", str(runs / "events.csv"), "--with", "model.width=16"]
    arguments += [f"--set={key}={value}" for key, value in QUICK.items() if "." in key]
    arguments += ["--set=training.epochs=2", "--set=training.batch_size=10", "--threads", "1"]
    assert main([*arguments, "--seeds", "2", "--out", str(tmp_path / "c"), "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2].startswith("model.width=16")
    assert "page        " in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sasrec"], "name at least one alternative"),
        (["sasrec", "--with", "precision"], "--with precision: expected key=value"),
        (["sasrec", "--with", "precission=bf16"], "unknown key 'precission'"),
        (["sasrec", "--with", "lr=1", "--with", "lr=1"], "given twice"),
        (["sasrec", "a", "b", "--with", "lr=1"], "name a model and one data set"),
        (["pop", "--all-switches"], "has no speed switches"),
        (["bprmf", "--with", "precision=bf16"], "no matrix products"),
        (["sasrec", "--with", "lr=1", "--budget", "long"], "--budget long: expected seconds"),
        (["sasrec", "--with", "seed=5"], "seed cannot be compared: --seeds N trains all"),
        (["sasrec", "--with", "out=x"], "out cannot be compared: --out is the folder"),
        (["sasrec", "--with", "data.k_core=7"], "data cannot be compared: all settings are"),
        (["sasrec", "--with", "evaluation.candidates=uni100"], "cannot be compared: other proto"),
        (["RUN", "RUN", "--budget", "1h"], "budget has no effect on finished runs"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, runs, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [str(runs / "base-0") if word == "RUN" else word for word in arguments]
    assert main(["compare", *given]) == 2
    assert message in capsys.readouterr().err
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    ("model", "device", "names"),
    [
        ("sasrec", "cpu", ["precision", "compile", "recompute", "accumulate", "cleanup_every"]),
        ("kgat", "cpu", ["precision", "recompute", "accumulate", "cleanup_every"]),
        ("bprmf", "cpu", ["accumulate", "cleanup_every"]),
        ("distmult", "cuda", ["precision", "precision", "compile", "accumulate", "cleanup_every"]),
    ],
)
def test_switches_are_those_that_the_model_supports(model, device, names):
    found = speed_switches(build_config(model), device)
    assert [key for each in found for key in each] == [f"training.{name}" for name in names]
    for each in found:
        build_config(model, flags=each)  # none is without effect
    used = build_config("sasrec", flags={"recompute": True})
    assert {"training.recompute": True} not in speed_switches(used, "cpu")


def test_all_switches_are_alternatives(runs, tmp_path, copied):
    found = compare(runs, tmp_path, alternatives=[], all_switches=True, seeds=1)
    assert list(found.verdicts()) == [
        "training.precision=bf16",
        "training.compile=auto",
        "training.recompute=true",
        "training.accumulate=2",
        "training.cleanup_every=50",
    ]


@pytest.mark.slow
def test_each_run_is_a_process(runs, tmp_path):
    """The peak memory of a run is its own."""
    found = hasten.compare(
        "sasrec",
        runs / "events.csv",
        settings={**QUICK, "epochs": 1},
        alternatives=[{"accumulate": 2}],
        seeds=1,
        out=tmp_path,
        quiet=True,
    )
    assert found.alternatives[0].memory is not None
    assert 0.5 < found.alternatives[0].memory.estimate < 2
    assert found.alternatives[0].speed is not None


def test_a_table_in_memory_is_refused():
    with pytest.raises(UsageError, match="each run is a process of its own"):
        hasten.compare("sasrec", {"user_id": [1]}, alternatives=[SAME])


def test_a_model_in_python_needs_an_alternative():
    with pytest.raises(UsageError, match="no run folder; to train sasrec"):
        hasten.compare("sasrec")

"""A plan is measured: its parts are those of the run, and its peak is that of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import half_memory
from hasten import api
from hasten.build import build_model, load_data, with_builtin_sample
from hasten.cli.main import main
from hasten.cli.plan import _show
from hasten.config_loading.build import build_config
from hasten.errors import HastenError, Interrupted, UsageError
from hasten.planning import plan
from hasten.planning.finished_runs import Measured, measured_before
from hasten.planning.plan import OutOfMemoryError, Plan, _found, plan_run
from hasten.planning.probe import probe
from hasten.training.step import OptimizerStep

QUICK = ("sasrec", "kgat", "mmgcn", "conve", "pop")
LONG = ("tisasrec", "bprmf", "lightgcn", "dragon", "distmult", "complex", "hgt", "degree")
LONG = (*LONG, "bm3", "freedom", "tucker", "rotate", "ease")
FITTED = ("ease", "slim", "itemknn", "gfcf", "pop", "degree")
MODELS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]


def configured(model: str, **settings: Any):
    return with_builtin_sample(build_config(model, None, None, (), {"device": "cpu", **settings}))


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_planned_by_its_own_steps(model, tmp_path):
    short = {} if model in FITTED else {"training.epochs": 1}
    found = probe(configured(model, **short), tmp_path / "run")
    memory, seconds = found["memory"], found["seconds"]
    assert found["model"] == model
    assert seconds["total"] > seconds["start"] > 0
    assert found["disk_bytes"] > 1000
    assert memory["data"] > 0
    if model in FITTED:
        assert found["steps"] == {"epoch": 0, "measured": 0}
        return
    assert memory["parameters"] > 0
    # two moments of every parameter; of those that two phases share, twice
    assert 2 * memory["parameters"] <= memory["optimizer moments"] < 4.5 * memory["parameters"]
    # a gradient can be a slice of one of several tables, which it keeps in memory
    assert 0 < memory["gradients"] < 2 * memory["parameters"]
    assert memory["activations"] > 0
    assert found["steps"]["measured"] >= 3
    assert seconds["epoch"] > 0
    assert seconds["evaluation"] > 0


def test_a_plan_of_the_command_line_is_one_json_object(capsys):
    arguments = ["--device", "cpu", "--epochs", "2", "--set", "model.width=8", "--json"]
    assert main(["plan", "sasrec", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epochs"] == 2
    assert found["peak_memory_bytes"] == max(found["stages"].values())
    assert sum(found["memory"].values()) >= found["stages"]["training"]


PLAN = Plan(
    "sasrec", "sample", "cpu", {}, {}, {}, 100 << 20,
    {"start": 2.0, "epoch": 1.0, "total": 12.0}, 10,
    {"epoch": 3, "measured": 3}, 0,
)  # fmt: skip


def test_only_finished_runs_predict_the_time_to_the_best_epoch(monkeypatch, tmp_path, capsys):
    _show(PLAN)
    assert "time to the best epoch: not predicted" in capsys.readouterr().out
    before = Measured(["runs/a"], 120 << 20, 2.0, 5)
    monkeypatch.setattr(plan, "measured_before", lambda *_: before)
    _show(PLAN.corrected_by(tmp_path, tmp_path))
    text = capsys.readouterr().out
    assert "time to the best epoch (epoch 5 in finished runs): 12.00 s" in text
    assert "corrected by 1 finished runs" in text


def test_errors_of_the_run_are_those_of_its_plan():
    with pytest.raises(HastenError, match="uni100"):
        plan_run(configured("sasrec", **{"data.split": "ratio", "evaluation.candidates": "uni100"}))


#: a long enough batch that the activations are most of the memory
LARGE = {
    "sasrec": {"model.width": 128, "training.batch_size": 2048, "training.lr": 1e-3},
    "tisasrec": {"model.width": 64, "training.batch_size": 1024, "training.lr": 1e-3},
    "conve": {"model.width": 200, "training.batch_size": 4096},
    "mmgcn": {"model.width": 256, "training.batch_size": 4096},
}


def test_slow_steps_are_measured_in_two_epochs(tmp_path, monkeypatch):
    # gradients, moments and freed memory are there from the second epoch on
    monkeypatch.setattr("hasten.planning.probe._LIMIT", 0.0)
    slow = {"model.width": 8, "training.batch_size": 512, "training.epochs": 4}
    assert probe(configured("sasrec", **slow), tmp_path / "run")["steps"]["measured"] == 2 * 3


def test_the_step_of_most_answers_is_measured_too(tmp_path, monkeypatch):
    taken = []
    call = OptimizerStep.__call__

    def watched(self, batch, *others):
        answers = self.phase.data.answers.take(batch.ids.numpy())
        taken.append((batch.epoch, len(answers.items)))
        return call(self, batch, *others)

    monkeypatch.setattr(OptimizerStep, "__call__", watched)
    monkeypatch.setattr("hasten.planning.probe._MAX_STEPS", 3)
    settings = {"model.loss": "1-n", "training.batch_size": 8, "training.epochs": 3}
    config = configured("distmult", **settings)
    probe(config, tmp_path / "run")
    graph = load_data(config, None)
    phase = build_model(config, graph, torch.device("cpu")).phases(graph, config.training)[0]
    for epoch in range(3):
        batches = [phase.plan(0, epoch, index) for index in range(phase.steps())]
        sizes = [len(phase.data.answers.take(each.ids.numpy()).items) for each in batches]
        assert len(set(sizes)) > 3
        assert max(sizes) in {size for number, size in taken if number == epoch}
        assert sizes[phase.largest_step(0, epoch)] == max(sizes)


def trained(model: str, out: Path, *more: str) -> dict[str, Any]:
    """The result of a run in a process of its own."""
    sets = [f"{key}={value}" for key, value in LARGE[model].items()]
    command = [sys.executable, "-m", "hasten", "train", model, "--set", *sets, "--device", "cpu"]
    ended = subprocess.run(
        [*command, "--epochs", "2", "--json", "--quiet", "--out", str(out), *more],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("model", LARGE)
def test_the_peak_is_predicted_within_a_tenth(model, tmp_path):
    planned = plan_run(configured(model, **LARGE[model], **{"training.epochs": 2}))
    measured = trained(model, tmp_path / "run")
    assert planned.peak_memory_bytes == pytest.approx(measured["peak_memory_bytes"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("model", half_memory.CASES)
def test_half_the_memory_gives_the_same_run(model):
    found = half_memory.measure(model, epochs=2, threads=1)
    assert half_memory.passes(found), found
    assert found["chosen"]


def test_a_run_keeps_its_plan_beside_what_was_measured(tmp_path, capsys):
    result = api.train(
        "sasrec", device="cpu", epochs=1, out=tmp_path / "run", memory_budget="20GB",
        settings={"model.width": 8}, threads=1,
    )  # fmt: skip
    assert "memory budget: predicted peak" in (tmp_path / "run" / "train.log").read_text()
    plan = json.loads((tmp_path / "run" / "metrics.json").read_text())["plan"]
    assert plan == result.summary.plan
    assert plan["chosen"] == {}
    assert plan["budget_bytes"] == 20 << 30
    assert plan["measured"]["epoch_seconds"] > 0
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["predicted"]


def test_finished_runs_correct_the_plan_and_their_median_is_named(tmp_path):
    first = configured("sasrec", **{"training.epochs": 1, "model.width": 8})
    probe(first, tmp_path / "runs" / "a")
    probe(
        configured("sasrec", **{"training.epochs": 1, "model.width": 16}), tmp_path / "runs" / "b"
    )
    result = {
        "effective": {"device": "cpu"}, "epochs": 2, "seconds": {"train": 6.0},
        "peak_memory_bytes": 123 << 20, "best_epoch": 1,
    }  # fmt: skip
    for name in ("a", "b"):
        (tmp_path / "runs" / name / "metrics.json").write_text(json.dumps(result))
    found = measured_before(tmp_path / "runs" / "a", tmp_path / "runs", "cpu")
    assert found is not None
    assert found.runs == [str(tmp_path / "runs" / "a")]  # the other has another width
    assert (found.peak_memory_bytes, found.epoch_seconds, found.best_epoch) == (123 << 20, 3.0, 1)
    assert measured_before(tmp_path / "runs" / "a", tmp_path / "runs", "cuda:0") is None


@pytest.mark.parametrize(
    ("code", "stderr", "kind"),
    [
        (1, 'File "hasten/planning/memory_parts.py", line 1', HastenError),
        (-9, "", OutOfMemoryError),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", OutOfMemoryError),
    ],
)
def test_a_crash_is_no_lack_of_memory(code, stderr, kind):
    ended = subprocess.CompletedProcess([], code, "", stderr)
    with pytest.raises(HastenError) as raised:
        _found(ended)
    assert type(raised.value) is kind


def alive(process: int) -> bool:
    """Whether a process exists that is no zombie."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_probe_and_leaves_nothing(number, tmp_path, monkeypatch):
    program = tmp_path / "probe"
    program.write_text(f"""#!{sys.executable}
import os, signal, sys, time
os.mkdir(sys.argv[4])
open({str(tmp_path / "process")!r}, "w").write(str(os.getpid()))
os.kill(os.getppid(), {int(number)})
time.sleep(60)
""")
    program.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with pytest.raises(Interrupted) as raised:
        plan_run(configured("pop"))
    assert raised.value.exit_code == 128 + number
    assert not list((tmp_path / "tmp").iterdir())
    assert not alive(int((tmp_path / "process").read_text()))


def test_a_signal_after_the_probe_ends_the_plan_too(monkeypatch):
    def found(_):
        os.kill(os.getpid(), signal.SIGTERM)
        return asdict(PLAN)

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(plan, "_found", found)
    with pytest.raises(Interrupted):
        plan_run(configured("pop"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_plan_of_the_command_line_leaves_nothing(number, tmp_path):
    command = [sys.executable, "-m", "hasten", "plan", "sasrec", "--device", "cpu", "--json"]
    with subprocess.Popen(
        command, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        while not list(tmp_path.glob("hasten-plan-*/run/data.json")):
            assert running.poll() is None
            time.sleep(0.05)
        os.killpg(running.pid, number)  # as a terminal does: the probe gets it too
        stdout, _ = running.communicate(timeout=30)
    assert running.returncode == 128 + number
    assert json.loads(stdout)["error"]["code"] == "interrupted"
    assert not list(tmp_path.iterdir())
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)


def test_a_table_in_memory_cannot_be_planned():
    with pytest.raises(UsageError, match="table in memory"):
        api.plan("sasrec", {"user_id": [1], "item_id": [2]})


def test_limits_and_saves_of_the_run_do_not_reach_the_steps_that_are_measured(tmp_path):
    settings = {"training.epochs": 1, "training.max_time": 1e-3, "checkpoint.every_steps": 1}
    found = probe(configured("sasrec", **{"model.width": 8, **settings}), tmp_path / "run")
    assert found["steps"]["measured"] == found["steps"]["epoch"] > 1
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1  # its own

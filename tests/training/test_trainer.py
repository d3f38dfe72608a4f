"""Runs as a whole: stopping, signals, time, compile, refusals on resume, damaged checkpoints."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hasten import api, run
from hasten.errors import (
    CheckpointError,
    ConfigurationError,
    HastenError,
    Interrupted,
    NonFiniteError,
    RunFolderError,
)
from hasten.loaded_run import evaluate
from hasten.models.sequential.sasrec import SASRec
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import fingerprint, training_log
from hasten.training import trainer
from hasten.training.control_flags import epochs_between_saves
from hasten.training.epoch_report import EpochReport
from hasten.training.step import OptimizerStep
from hasten.training.trainer import Trainer
from hasten.training_run import TrainingRun
from tests.contract.cases import graph, sequences

SMALL = {
    "model.width": 16,
    "model.max_length": 12,
    "training.batch_size": 8,
    "training.schedule": "constant",
    "device": "cpu",
    "threads": 1,
}


def train(out: Path, **settings):
    merged = {**SMALL, **{k.replace("__", "."): v for k, v in settings.items()}}
    return api.train("sasrec", sequences(), settings=merged, out=str(out), quiet=True)


def test_recorded_losses_do_not_depend_on_when_they_are_recorded(tmp_path, monkeypatch):
    """As on a GPU, where the losses of 25 steps are summed before the host reads them."""
    monkeypatch.setattr(trainer, "_SYNC_INTERVAL_CPU", 25)
    train(tmp_path / "whole", training__epochs=3)
    train(tmp_path / "parts", training__epochs=3, checkpoint__every_steps=2)
    assert training_log(tmp_path / "whole") == training_log(tmp_path / "parts")


def test_patience_ends_the_run_and_best_is_selected_on_validation(tmp_path):
    result = train(tmp_path / "run", training__epochs=40, training__lr=1e-9, training__patience=2)
    assert result.summary.stopped_by == "no improvement for 2 evaluations"
    valid = [r for r in training_log(tmp_path / "run") if r["kind"] == "valid"]
    best = max(range(len(valid)), key=lambda i: (valid[i]["ndcg@10"], -i))
    assert result.summary.best_epoch == valid[best]["epoch"]
    assert len(valid) == best + 3
    assert result.valid_metrics["ndcg@10"] == valid[best]["ndcg@10"]


def test_evaluation_interval_and_last_epoch(tmp_path):
    train(tmp_path / "run", training__epochs=5, evaluation__every=2)
    lines = training_log(tmp_path / "run")
    assert [r["epoch"] for r in lines if r["kind"] == "valid"] == [2, 4, 5]


def test_checkpoints_are_kept_as_asked(tmp_path):
    train(tmp_path / "run", training__epochs=7, checkpoint__every=2, checkpoint__keep=2)
    kept = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["epoch-0006", "epoch-0007"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An unbroken run of thirty epochs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(out, training__epochs=30)
    return out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_the_run_goes_on_exactly(number, whole, tmp_path, monkeypatch):
    take_step, steps = OptimizerStep.__call__, iter(range(1, 1000))

    def signaled_step(*arguments):
        if next(steps) == 20:
            os.kill(os.getpid(), number)
        return take_step(*arguments)

    monkeypatch.setattr(OptimizerStep, "__call__", signaled_step)
    with pytest.raises(Interrupted) as stopped:
        train(tmp_path / "run", training__epochs=30)
    assert stopped.value.exit_code == 128 + number
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"interrupted by {name} after step 20;" in str(stopped.value)
    run.resume(tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == fingerprint(whole)
    assert training_log(tmp_path / "run") == training_log(whole)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("call", "number"), [(1, signal.SIGTERM), (8, signal.SIGINT)])
def test_a_signal_abandons_compiling(call, number, tmp_path, monkeypatch):
    """At the start and in a step. The compiler would take 30 s; the run resumes exactly."""
    compile_function, calls, compiled_to_the_end = torch.compile, 0, []

    def backend(graph, _inputs):
        if calls == call:
            os.kill(os.getpid(), number)
            end = time.monotonic() + 30
            while time.monotonic() < end:
                pass
            compiled_to_the_end.append(call)
        return graph.forward

    def compiler(function, **_):
        compiled = compile_function(function, backend=backend, dynamic=True)

        def counted(*arguments):
            nonlocal calls
            calls += 1
            if calls == 8:
                torch._dynamo.reset()
            return compiled(*arguments)

        return counted

    # compiled code draws other dropout masks
    settings = {"training__compile": "default", "training__epochs": 2, "model__dropout": 0.0}
    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.raises(Interrupted) as stopped:
        train(tmp_path / "run", **settings)
    assert not compiled_to_the_end
    assert stopped.value.exit_code == 128 + number
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    run.resume(tmp_path / "run", quiet=True)
    train(tmp_path / "whole", **settings)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
    assert training_log(tmp_path / "run") == training_log(tmp_path / "whole")


def test_weights_that_are_not_finite_are_an_error_and_not_saved(tmp_path):
    with pytest.raises(NonFiniteError, match=r"of .* weights infinite or NaN, in items\.weight, "):
        train(tmp_path / "run", training__epochs=1, training__lr=1e300)
    assert not (tmp_path / "run" / "best").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_model_that_no_memory_holds_is_refused_with_its_size(tmp_path):
    for settings in (
        {"model__width": 10**8},
        {"model__width": 10**18},
        {"model__max_length": 10**11, "model__width": 8},
        {"model__width": 2**62, "model__blocks": 1000},
        {"model__width": 2**63},
        {"model__width": 10**30},
        {"model__max_length": 2**64, "model__width": 8},
        {"model__feedforward": 10**18, "model__width": 64},
        {"model__feedforward": 10**30, "model__width": 8},
    ):
        with pytest.raises(HastenError, match=r"the model needs at least [0-9,.]+ GB of memory"):
            train(tmp_path / "run", **settings)
        assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigurationError, match=r"model\.blocks = 100000.*must be 1000 or less"):
        train(tmp_path / "run", model__blocks=100_000)


def test_patience_without_a_validation_part_is_told(tmp_path, capsys):
    settings = {"training__patience": 2, "data__split": "ratio", "data__ratios": [0.9, 0, 0.1]}
    result = train(tmp_path / "run", training__epochs=1, **settings)
    assert "training.patience has no effect: there is no validation part" in capsys.readouterr().err
    assert result.valid_metrics == {}


def test_time_out_saves_finishes_and_goes_on(tmp_path):
    result = train(tmp_path / "run", training__epochs=400, training__max_time=0.5)
    assert result.summary.stopped_by == "max_time"
    assert result.summary.epochs < 400
    assert 0 <= result.metrics["ndcg@10"] <= 1
    position = read_checkpoint(tmp_path / "run" / "final").state["position"]
    again = run.resume(
        tmp_path / "run",
        changes={"training.max_time": None, "training.epochs": position["epoch"] + 1},
        quiet=True,
    )
    assert again.epochs == position["epoch"] + 1


def counted_evaluations(monkeypatch):
    """The tasks of the evaluations, in order."""
    tasks = []
    whole = TrainingRun.evaluate

    def noted(self, task, *others):
        tasks.append(task.protocol)
        return whole(self, task, *others)

    monkeypatch.setattr(TrainingRun, "evaluate", noted)
    return tasks


def test_the_result_of_the_best_epoch_is_not_computed_again(tmp_path, monkeypatch):
    tasks = counted_evaluations(monkeypatch)
    result = train(tmp_path / "run", training__epochs=2)
    assert [task.part for task in tasks] == ["valid", "valid", "test"]
    assert result.valid_metrics == evaluate(tmp_path / "run", part="valid")["valid"]


def test_validations_on_sampled_users_select_and_the_end_counts_all(tmp_path, monkeypatch):
    tasks = counted_evaluations(monkeypatch)
    train(tmp_path / "run", training__epochs=2, evaluation__users=7)
    assert [task.sampled_queries for task in tasks] == [7, 7, None, None]
    assert " ± 0." in (tmp_path / "run" / "val.log").read_text()


def test_validations_on_sampled_triples_select_and_the_end_counts_all(tmp_path, monkeypatch):
    tasks = counted_evaluations(monkeypatch)
    settings = {"model.width": 8, "training.epochs": 2, "evaluation.triples": 4, "threads": 1}
    api.train("distmult", graph(), settings=settings, out=str(tmp_path / "run"), quiet=True)
    assert [task.sampled_queries for task in tasks] == [4, 4, None, None]
    assert " ± 0." in (tmp_path / "run" / "val.log").read_text()


def test_an_evaluation_ends_at_the_time_limit_and_a_resumed_run_begins_with_it(
    tmp_path, monkeypatch
):
    reference = train(tmp_path / "reference", training__epochs=2)
    monkeypatch.setattr("hasten.training.control_flags.RunControl.overdue", True)
    result = train(tmp_path / "run", training__epochs=2, training__max_time=1e4)
    assert result.summary.stopped_by == "max_time"
    assert result.summary.epochs == 0
    monkeypatch.undo()
    again = run.resume(tmp_path / "run", quiet=True)
    assert again.valid == reference.valid_metrics
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "reference")


def test_more_epochs_after_the_end_equal_a_longer_run(tmp_path):
    train(tmp_path / "long", training__epochs=4)
    train(tmp_path / "short", training__epochs=2)
    run.resume(tmp_path / "short", changes={"training.epochs": 4}, quiet=True)
    assert fingerprint(tmp_path / "short") == fingerprint(tmp_path / "long")
    assert training_log(tmp_path / "short") == training_log(tmp_path / "long")


def test_resume_from_a_named_checkpoint_forgets_what_came_later(tmp_path):
    train(tmp_path / "run", training__epochs=4, checkpoint__keep=9)
    expected = fingerprint(tmp_path / "run")
    run.resume(tmp_path / "run", checkpoint="epoch-0002", quiet=True)
    assert fingerprint(tmp_path / "run") == expected
    with pytest.raises(RunFolderError, match=r"no checkpoint 'epoch-0009'.*epoch-0002"):
        run.resume(tmp_path / "run", checkpoint="epoch-0009", quiet=True)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_copy_goes_on_and_leaves_the_run_as_it_is(tmp_path):
    train(tmp_path / "run", training__epochs=4, checkpoint__keep=9)
    train(tmp_path / "longer", training__epochs=5)
    before = everything(tmp_path / "run")
    longer = {"training.epochs": 5}
    for name, checkpoint in (("newest", None), ("early", "epoch-0002"), ("best", "best")):
        copy = tmp_path / "copies" / name
        run.resume(tmp_path / "run", checkpoint=checkpoint, out=copy, changes=longer, quiet=True)
        assert fingerprint(copy) == fingerprint(tmp_path / "longer")
        assert training_log(copy) == training_log(tmp_path / "longer")
    assert everything(tmp_path / "run") == before


def test_a_copy_that_cannot_be_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    train(tmp_path / "run", training__epochs=1)
    with pytest.raises(RunFolderError, match="holds a run already"):
        run.resume(tmp_path / "run", out=tmp_path / "run", quiet=True)
    with pytest.raises(RunFolderError, match="no checkpoint 'epoch-0009'"):
        run.resume(tmp_path / "run", checkpoint="epoch-0009", out=tmp_path / "new", quiet=True)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(HastenError, match=r"new: no copy can be made: No space left on device"):
        run.resume(tmp_path / "run", out=tmp_path / "new", quiet=True)
    assert {entry.name for entry in tmp_path.iterdir()} == {"run"}


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    train(tmp_path / "run", training__epochs=3, checkpoint__keep=9)
    expected = fingerprint(tmp_path / "run")
    weights = tmp_path / "run" / "checkpoints" / "epoch-0003" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    run.resume(tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == expected
    assert "epoch-0003" in (tmp_path / "run" / "train.log").read_text()


def test_only_listed_keys_change_on_resume(tmp_path):
    train(tmp_path / "run", training__epochs=1)
    with pytest.raises(ConfigurationError, match=r"training\.lr cannot change"):
        run.resume(tmp_path / "run", changes={"training.lr": 0.1}, quiet=True)
    with pytest.raises(ConfigurationError, match=r"model\.width cannot change"):
        run.resume(tmp_path / "run", changes={"model.width": 32}, quiet=True)


def test_changed_data_are_refused_on_resume(tmp_path):
    train(tmp_path / "run", training__epochs=1)
    described = tmp_path / "run" / "data.json"
    values = json.loads(described.read_text())
    described.write_text(json.dumps({**values, "fingerprint": "0" * 64}))
    with pytest.raises(RunFolderError, match="have changed"):
        run.resume(tmp_path / "run", quiet=True)


def test_resume_auto_starts_then_goes_on(tmp_path):
    settings = {**SMALL, "training.epochs": 2}
    config = api.build_config("sasrec", None, None, (), {**settings, "out": str(tmp_path / "run")})
    first = run.train(config, table=sequences(), quiet=True, resume_auto=True)
    assert first.epochs == 2
    longer = config.model_copy(
        update={"training": config.training.model_copy(update={"epochs": 3})}
    )
    assert run.train(longer, table=sequences(), quiet=True, resume_auto=True).epochs == 3
    other = config.model_copy(update={"seed": 5})
    with pytest.raises(ConfigurationError, match="seed cannot change"):
        run.train(other, table=sequences(), quiet=True, resume_auto=True)


def test_weights_start_another_run(tmp_path):
    first = train(tmp_path / "a", training__epochs=3)
    second = train(tmp_path / "b", training__epochs=0, init_from=str(tmp_path / "a"))
    ours = second.loaded.model.state_dict()
    for name, tensor in first.loaded.model.state_dict().items():
        assert torch.equal(ours[name], tensor)
    with pytest.raises(CheckpointError, match="do not fit"):
        train(tmp_path / "c", init_from=str(tmp_path / "a"), model__width=8)
    assert not (tmp_path / "c").exists()


def _poison(monkeypatch, kind, only_low=False):
    """Make the loss NaN, always or only under autocast."""
    original = SASRec.next_item_loss

    def poisoned(self, batch):
        loss = original(self, batch)
        if not only_low or torch.is_autocast_enabled("cpu"):
            loss = loss * kind
        return loss

    monkeypatch.setattr(SASRec, "next_item_loss", poisoned)


def test_persistent_nan_stops_the_run_and_names_the_culprit(tmp_path, monkeypatch):
    _poison(monkeypatch, math.nan)
    with pytest.raises(NonFiniteError, match=r"4 steps in a row.*loss term loss"):
        train(tmp_path / "run", training__bad_steps=4)


def test_precision_that_does_not_hold_is_lowered(tmp_path, monkeypatch):
    _poison(monkeypatch, math.inf, only_low=True)
    result = train(
        tmp_path / "run",
        training__bad_steps=3,
        training__precision="fp16",
        training__emulate_fp16=True,
        training__epochs=3,
    )
    assert result.summary.effective["precision"] == "fp32"
    assert result.summary.effective["bad_steps"] == 6
    log = (tmp_path / "run" / "train.log").read_text()
    assert "going on in bf16" in log
    assert "going on in fp32" in log


def test_fp16_on_a_cpu_that_emulates_it_is_refused_unless_forced(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.training.precision.cpu_computes_fp16", lambda: False)
    with pytest.raises(ConfigurationError, match=r"emulate_fp16=true"):
        train(tmp_path / "run", training__precision="fp16")
    assert not (tmp_path / "run").exists()
    settings = {"training__precision": "fp16", "training__emulate_fp16": True}
    result = train(tmp_path / "run", **settings, training__epochs=1)
    assert result.summary.effective["precision"] == "fp16"
    assert "no fp16 arithmetic" in (tmp_path / "run" / "train.log").read_text()


def test_training_leaves_torchs_generator_alone(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    train(tmp_path / "run", training__epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_log_says_what_happened(tmp_path):
    train(tmp_path / "run", training__epochs=2)
    log = (tmp_path / "run" / "train.log").read_text()
    assert "device: cpu, 1 threads" in log
    assert re.search(r"epoch 2  loss .* examples/s  [\d,]+ MiB RAM", log)
    assert "best so far" in (tmp_path / "run" / "val.log").read_text()
    assert "full ranking" in (tmp_path / "run" / "val.log").read_text()
    assert list((tmp_path / "run").glob("events.out.tfevents*"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", ["default", "auto"])
def test_compile_compiles_what_is_called_and_reports_it(mode, tmp_path):
    result = train(tmp_path / "run", training__epochs=1, training__compile=mode)
    (report,) = result.summary.effective["compile"]
    assert report["graphs"] >= 1
    assert report["in_effect"] or mode == "auto"
    if mode == "auto":
        assert report["in_effect"] == (report["compiled_ms"] < 0.97 * report["eager_ms"])


@pytest.mark.parametrize("metric", ["mrr", "mr"])
def test_a_diverged_model_is_never_the_best(tmp_path, monkeypatch, metric):
    """Every weight turns NaN in the third epoch: all scores are NaN, and none of them wins."""
    finish_epoch = Trainer.finish_epoch

    def poisoned(self):
        if self.state.position.epoch == 2:
            for weight in self.model.parameters():
                weight.data.fill_(math.nan)
        finish_epoch(self)

    monkeypatch.setattr(Trainer, "finish_epoch", poisoned)
    settings = {
        "model.width": 36,
        "model.channels": 4,
        "training.batch_size": 32,
        "training.epochs": 3,
        "evaluation.metrics": metric,
        "device": "cpu",
        "threads": 1,
    }
    with pytest.raises(
        NonFiniteError, match=r"an update made ([0-9,]+) of \1 weights infinite or NaN"
    ):
        api.train("conve", graph(), settings=settings, out=str(tmp_path / "run"), quiet=True)
    values = [r for r in training_log(tmp_path / "run") if r["kind"] == "valid"]
    assert len(values) == 3
    worst = min if metric == "mrr" else max
    assert values[2][metric] == worst(value[metric] for value in values)
    best = read_checkpoint(tmp_path / "run" / "best")
    assert best.state["selection"]["best_epoch"] in (1, 2)
    for saved in (best.path, *(tmp_path / "run" / "checkpoints").iterdir()):
        weights = read_checkpoint(saved).tensors["weights"]
        assert all(tensor.isfinite().all() for tensor in weights.values())
    assert not (tmp_path / "run" / "final").exists()


def test_small_losses_are_shown_by_their_digits():
    lines: list[str] = []
    journal = SimpleNamespace(record=lambda *_: None, log_train=lines.append)
    losses = {"l2": 1.5e-5, "loss": 0.25, "zero": 0.0}
    report = EpochReport(1, 2, losses, 0.1, 1.0, 9.0, "1 MiB RAM", None, best=False)
    report.write(journal, SimpleNamespace(note=lambda **_: None), "mrr")
    assert "l2 1.5e-05 loss 0.2500 zero 0.0000" in lines[0]


def test_checkpoints_that_take_long_are_not_saved_after_every_epoch(tmp_path, monkeypatch):
    """Each takes a second by the clock, an epoch four: one in five epochs takes 5 % of the time."""
    now = 0.0
    epochs = []
    finish, save = Trainer.finish_epoch, Trainer.write

    def finish_epoch(self):
        nonlocal now
        now += 4.0
        return finish(self)

    def write(self, folder, numbered=False):
        nonlocal now
        save(self, folder, numbered)
        if folder.name.startswith("epoch"):
            now += 1.0
            epochs.append(int(folder.name[-4:]))

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(Trainer, "finish_epoch", finish_epoch)
    monkeypatch.setattr(Trainer, "write", write)
    train(tmp_path / "run", training__epochs=13)
    assert epochs == [1, 6, 11, 13]
    assert epochs_between_saves(None, 1.0, 4.0) == 5
    epochs.clear()
    train(tmp_path / "given", training__epochs=4, checkpoint__every=2)
    assert epochs == [2, 4]
    assert [epochs_between_saves(*each) for each in ((3, 1.0, 4.0), (None, 0.1, 0.1))] == [3, 1]


def test_a_run_that_ends_early_has_a_checkpoint_of_its_last_epoch(tmp_path):
    """By a callback, after an epoch that has no checkpoint of its own: it goes on exactly there."""
    settings = {**SMALL, "training.epochs": 5, "checkpoint.every": 10}
    out = str(tmp_path / "run")
    stop = (lambda report: report.number == 3,)
    api.train("sasrec", sequences(), settings=settings, out=out, quiet=True, callbacks=stop)
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["epoch-0003"]
    run.resume(tmp_path / "run", quiet=True)
    train(tmp_path / "whole", training__epochs=5, checkpoint__every=10)
    assert training_log(tmp_path / "run") == training_log(tmp_path / "whole")
    kept = {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {"epoch-0003", "epoch-0005"}

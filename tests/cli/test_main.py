"""The command: exit codes, one JSON object, and what becomes of every kind of error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hasten
from hasten import registry
from hasten.cli import output
from hasten.cli.main import main
from hasten.errors import CheckpointError, DataError, Interrupted, RunFolderError
from hasten.runs.summary import Summary


@dataclass
class FakeRun:
    """Both ``hasten.run`` and ``hasten.loaded_run``: remembers questions, answers or raises."""

    error: BaseException | None = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def answer(self, verb: str, **asked: Any) -> Any:
        self.calls.append((verb, asked))
        if self.error is not None:
            raise self.error
        values = {
            "run": Path("runs/x"),
            "model": "toy",
            "data": "events",
            "epochs": 3,
            "valid": {"ndcg@10": 0.5},
            "test": {"ndcg@10": float("nan")},
            "protocol": "full ranking",
            "seconds": {"train": 1.0, "evaluate": 0.5, "total": 2.0},
            "examples_per_second": float("inf"),
            "peak_memory_bytes": 1 << 20,
            "effective": {},
            "stopped_by": "epochs",
            "best_epoch": 3,
        }
        return SimpleNamespace(**values, to_json=lambda: values)

    def train(self, config, **options):
        return self.answer("train", config=config, **options)

    def resume(self, run, **options):
        return self.answer("resume", run=run, **options)

    def evaluate(self, run, **options):
        self.answer("evaluate", run=run, **options)
        return {
            "run": str(run),
            "model": "toy",
            "data": "events",
            "checkpoint": "best",
            "valid": {"ndcg@10": 0.5},
            "test": {"ndcg@10": None},
            "protocol": "full ranking",
            "seconds": 1.0,
        }


@pytest.fixture
def run(monkeypatch, toy) -> FakeRun:
    fake = FakeRun()
    monkeypatch.setitem(sys.modules, "hasten.run", fake)
    monkeypatch.setattr(hasten, "run", fake, raising=False)
    monkeypatch.setitem(sys.modules, "hasten.loaded_run", fake)
    monkeypatch.setattr(hasten, "loaded_run", fake, raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    return fake


def last_json(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1, text
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))


def test_train_prints_one_object_with_null_for_what_is_not_finite(run, capsys):
    flags = ["--epochs", "3", "--no-recompute", "--max-time", "2h", "--lr", "1e-2"]
    assert main(["train", "toy", "x.csv", "--json", "--quiet", *flags]) == 0
    shown = capsys.readouterr()
    found = last_json(shown.out)
    assert found["test"] == {"ndcg@10": None}
    assert found["examples_per_second"] is None
    assert found["run"] == "runs/x"
    assert shown.err == ""
    (verb, asked), config = run.calls[0], run.calls[0][1]["config"]
    assert verb == "train"
    assert asked["quiet"] is True
    assert asked["resume_auto"] is False
    assert (config.training.epochs, config.training.lr, config.training.max_time) == (3, 0.01, 7200)
    assert config.training.recompute is False
    assert config.data.path == "x.csv"


def test_without_json_everything_goes_to_stderr(run, capsys):
    assert main(["train", "toy"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "ndcg@10 0.5000" in shown.err
    assert "full ranking" in shown.err
    assert "hasten recommend runs/x" in shown.err


def test_resume_and_evaluate_pass_on_what_was_asked(run, capsys):
    assert main(["resume", "runs/x", "--epochs", "9", "--patience", "none", "--json"]) == 0
    assert last_json(capsys.readouterr().out)["model"] == "toy"
    verb, asked = run.calls[0]
    assert (verb, asked["run"], asked["checkpoint"]) == ("resume", Path("runs/x"), None)
    assert asked["changes"] == {"training.epochs": 9, "training.patience": None}
    arguments = ["evaluate", "runs/x", "--metrics", "hr", "--topk", "5", "--json"]
    assert main([*arguments, "--set", "evaluation.mask_history=true"]) == 0
    assert last_json(capsys.readouterr().out)["test"] == {"ndcg@10": None}
    assert run.calls[1][1]["changes"] == {
        "evaluation.mask_history": True,
        "evaluation.metrics": ("hr@5",),
    }


def test_one_set_takes_several_pairs(run):
    pairs = ["training.epochs=2", "training.lr=1e-2", "data.columns.user=uid"]
    assert main(["train", "toy", "x.csv", "--set", *pairs, "--seed", "3"]) == 0
    assert main(["train", "toy", "--set", "training.epochs=4", "seed=1/x.csv"]) == 0
    first, second = (asked["config"] for _, asked in run.calls)
    assert (first.training.epochs, first.training.lr, first.seed) == (2, 0.01, 3)
    assert (first.data.columns["user"], first.data.path) == ("uid", "x.csv")
    assert (second.training.epochs, second.data.path) == (
        4,
        "seed=1/x.csv",
    )  # a file of a partition


def test_resume_auto_needs_a_folder(run, capsys):
    assert main(["train", "toy", "--resume", "auto", "--out", "here"]) == 0
    assert run.calls[0][1]["resume_auto"] is True
    assert main(["train", "toy", "--resume", "auto"]) == 2
    assert main(["train", "toy", "--resume", "runs/x"]) == 2
    assert "hasten resume RUN" in capsys.readouterr().err
    assert len(run.calls) == 1


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (DataError("events.csv, line 3: x"), "data", 2),
        (RunFolderError("no run"), "run_folder", 2),
        (CheckpointError("damaged"), "checkpoint", 1),
        (Interrupted("saved", signal.SIGINT), "interrupted", 130),
        (Interrupted("saved", signal.SIGTERM), "interrupted", 143),
        (KeyboardInterrupt(), "interrupted", 130),
        (PermissionError(13, "Permission denied", "/nowhere"), "system", 1),
        (MemoryError("8 GB"), "memory", 1),
    ],
)
def test_errors_have_one_message_a_code_and_no_traceback(run, capsys, error, code, exit_code):
    run.error = error
    assert main(["train", "toy", "--json"]) == exit_code
    shown = capsys.readouterr()
    found = last_json(shown.out)
    assert set(found) == {"error"}
    assert found["error"]["code"] == code
    assert shown.err == f"error: {found['error']['message']}\n"


def test_debug_shows_the_traceback(run, capsys):
    run.error = DataError("bad line")
    assert main(["train", "toy", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_unforeseen_error_is_called_a_defect(run, capsys):
    run.error = ZeroDivisionError("by zero")
    assert main(["train", "toy", "--json"]) == 1
    shown = capsys.readouterr()
    assert "Traceback" in shown.err
    assert last_json(shown.out)["error"] == {
        "code": "defect",
        "message": "this is a defect in hasten: ZeroDivisionError: by zero",
    }


def test_control_characters_do_not_reach_the_terminal(run, capsys):
    run.error = DataError("name \x1b[2J\x07 and \u202e")
    assert main(["train", "toy"]) == 2
    assert capsys.readouterr().err == "error: name \\x1b[2J\\x07 and \\u202e\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tran"], "unknown command 'tran'"),
        (["tran"], "did you mean 'train'?"),
        (["compere", "sasrec", "x"], "unknown command 'compere'"),
        (["train", "--epoch", "3"], "unknown option --epoch of hasten train; did you mean '--ep"),
        (["train", "toy", "--epochs", "x"], "training.epochs = x (--epochs): must be a whole nu"),
        (["train", "toy", "--lr", "-1"], "training.lr = -1 (--lr): must be more than 0"),
        (["train", "toy", "--precision", "fp8"], "must be one of fp32, bf16, fp16, auto"),
        (["train", "toy", "--max-time", "soon"], "--max-time soon: expected seconds"),
        (["train", "toi"], "unknown model 'toi' (there are"),
        (["train", "toi"], "did you mean 'toy'?"),
        (["train", "sasrek"], "unknown model 'sasrek'"),
        (["train"], "no model is named"),
        (["train", "toy", "a", "b"], "unexpected extra argument"),
        (["train", "toy", "--epochs"], "requires an argument"),
        (["train", "toy", "--set", "x"], "expected key.path=value"),
        (["train", "toy", "--config", "absent.yaml"], "absent.yaml: cannot be read"),
        (["resume"], "RUN"),
        (["resume", "x", "--epochs", "x"], "must be a whole number"),
        (["evaluate", "x", "--topk", "0"], "--topk 0"),
        (["recommend", "x"], "no users: give one of"),
        (["recommend", "x", "--users", "all", "--until", "now"], "must be one of train, valid, te"),
        (["recommend", "x", "--users", "all", "--history", "a"], "no users: give one of"),
        (["train", "toy", "--devices", "0"], "--devices"),
        (["train", "toy", "--backend", "mpi"], "--backend"),
        (["train", "toy", "--master-port", "70000"], "--master-port"),
        (["train", "toy", "--lr-scaling", "cube"], "--lr-scaling"),
        (["evaluate", "x", "--devices", "two"], "--devices two: expected a whole number"),
        (["doctor", "--devices", "2"], "needs --distributed"),
        (
            ["train", "toy", "--batch-size", "8", "--set", "training.batch_size_per_device=4"],
            "are alternatives: give one",
        ),
        (["train", "toy", "--memory-budget", "lots"], "--memory-budget lots: expected a size"),
        (["plan", "toy", "--budget", "10 pounds"], "--budget 10 pounds: expected a size"),
    ],
)
def test_wrong_usage_is_code_two(run, capsys, arguments, message):
    assert main([arguments[0], "--json", *arguments[1:]]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert last_json(shown.out)["error"]["code"] in ("usage", "configuration", "data")
    assert not run.calls


def test_options_of_several_processes_reach_the_configuration(run):
    given = ["--devices", "1", "--lr-scaling", "sqrt", "--backend", "gloo", "--master-port", "0"]
    assert main(["train", "toy", *given]) == 0
    config = run.calls[0][1]["config"]
    assert (config.devices, config.training.lr_scaling) == (1, "sqrt")
    assert (config.distributed.backend, config.distributed.master_port) == ("gloo", 0)


def test_several_processes_are_refused_where_they_repeat_the_work_and_said_once(
    run, monkeypatch, capsys
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(["recommend", "x", "--users", "all", "--json"]) == 2
    shown = capsys.readouterr()
    assert "this command works in one process" in shown.err
    assert last_json(shown.out)["error"]["code"] == "usage"
    monkeypatch.setenv("RANK", "1")
    assert main(["recommend", "x", "--users", "all", "--json"]) == 2
    assert capsys.readouterr() == ("", "")


def test_devices_must_not_contradict_the_launcher(run, monkeypatch, capsys):
    started = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**started, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "toy", "--devices", "2"]) == 0
    assert main(["train", "toy", "--devices", "3"]) == 2
    assert "a launcher has started 2 processes" in capsys.readouterr().err
    assert main(["train", "toy", "--master-port", "1234"]) == 2
    assert "give the port to the launcher" in capsys.readouterr().err
    monkeypatch.delenv("MASTER_PORT")
    assert main(["train", "toy"]) == 2
    assert "MASTER_PORT is not set" in capsys.readouterr().err


@pytest.mark.parametrize("spelling", ["--local-rank=3", "--local_rank=3"])
def test_the_local_rank_of_the_old_launcher_becomes_a_variable(run, monkeypatch, spelling):
    monkeypatch.setenv("LOCAL_RANK", "")
    monkeypatch.delenv("LOCAL_RANK")
    assert main([spelling, "train", "toy"]) == 0
    assert os.environ["LOCAL_RANK"] == "3"


def test_help_and_version(capsys):
    for arguments in ([], ["--help"], ["-h"], ["train", "--help"]):
        assert main(arguments) == 0
        shown = capsys.readouterr()
        assert "Usage: hasten" in shown.out
        assert shown.err == ""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hasten 0.")


def hasten_process(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hasten", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{**pipes, **options})


@pytest.mark.parametrize("model", ["sasrec", "hgt"])
def test_training_without_compile_does_not_import_what_it_needs(tmp_path, model):
    """Dynamo takes 70 MiB and a second, sympy for symbolic shapes 35 MiB and half a second."""
    words = ["train", model, "--epochs", "1", "--device", "cpu"]
    words += ["--set", "model.loss=bce"] if model == "sasrec" else []
    code = (
        "import sys; from hasten.cli.main import main; assert main(sys.argv[1:]) == 0;"
        "heavy = {'torch._dynamo', 'sympy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    called = [sys.executable, "-c", code, *words, "--quiet", "--out", str(tmp_path / "run")]
    done = subprocess.run(called, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_import_is_quick_and_light():
    code = (
        "import sys, time; begin = time.process_time(); import hasten; dir(hasten);"
        "print(time.process_time() - begin);"
        "heavy = {'torch', 'numpy', 'pyarrow', 'pydantic', 'typer'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    called = [sys.executable, "-c", code]
    runs = [subprocess.run(called, capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) < 0.2


@pytest.mark.parametrize(
    ("command", "allowed"),
    [([], set()), (["train"], {"pydantic"})],  # typer imports pydantic for a command's parameters
)
def test_help_imports_no_heavy_packages(command, allowed):
    heavy = {"torch", "numpy", "pyarrow", "pydantic", "matplotlib"} - allowed
    code = (
        "import sys; from hasten.cli.main import main; main(sys.argv[1:]);"
        f"heavy = {heavy} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    called = [sys.executable, "-c", code, *command, "--help"]
    done = subprocess.run(called, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_of_train_lists_the_models_of_installed_packages(monkeypatch, capsys):
    point = EntryPoint("gru4rec", "sequences:GRU4Rec", registry.ENTRY_POINT_GROUP)
    found = [point._for(SimpleNamespace(name="more-models"))]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found)
    monkeypatch.setenv("COLUMNS", "200")
    registry._foreign_entries.cache_clear()
    assert main(["train", "--help"]) == 0
    registry._foreign_entries.cache_clear()
    shown = capsys.readouterr().out.replace("│", " ")  # the frame of the table, where a line ends
    assert "gru4rec: from package more-models." in " ".join(shown.split())


def test_exit_code_of_the_process():
    process = hasten_process("train", "nope", "--json")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert last_json(out)["error"]["code"] == "configuration"
    assert "Traceback" not in err


def test_a_closed_pipe_ends_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    process = hasten_process("--help", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == ""


@pytest.mark.parametrize(
    ("model", "command"), [("sasrec", "recommend"), ("conve", "predict"), ("hgt", "embed")]
)
def test_the_next_command_is_one_that_the_model_supports(model, command, tmp_path, capsys):
    summary = Summary(tmp_path, model, "data", 1, {"mrr": 0.1}, {}, "", {}, 9.0, 0, {}, "epochs", 1)
    output.print_summary(summary)
    *_, following, ended, advice = capsys.readouterr().err.splitlines()
    assert following.startswith(f"next        hasten {command} {tmp_path}")
    assert ended == "ended       finished after 1 epoch, best epoch 1"
    assert f"hasten resume {tmp_path} --epochs 2" in advice


SPELLINGS = {
    "--loss": "--set model.loss=",
    "--use_amp": "--precision auto",
    "--fp16": "--precision auto",
    "--use-mixed-precision": "--precision auto",
    "--maxlen": "--set model.max_length=",
    "--max_seq_length": "--set model.max_length=",
    "--train_batch_size": "--batch-size",
    "--batch-size-train": "--batch-size",
    "--batch_size": "--batch-size",
    "--batch_size_per_gpu": "--set training.batch_size_per_device=",
    "--eval_batch_size": "leave it out",
    "--no_mhc": "--set model.residual=plain",
    "--embedding_dim": "--set model.width=",
    "--emb_dim": "--set model.width=",
    "--hidden_units": "--set model.width=",
    "--num_blocks": "--set model.blocks=",
    "--num_heads": "--set model.heads=",
    "--dropout_rate": "--set model.dropout=",
    "--l2_emb": "--set training.weight_decay=",
    "--learning_rate": "--lr",
    "--n_epochs": "--epochs",
    "--num-epochs": "--epochs",
    "--gpu_id": "--device",
    "--num_gpus": "--devices",
    "--multi_gpu": "--devices N",
    "--num_workers": "without workers",
    "--topks": "--topk",
    "--output-dir": "--out",
    "--state_dict_path": "--init-from",
    "--dataset": "the argument after MODEL",
    "--inference_only": "hasten evaluate RUN",
    "--patiance": "did you mean '--patience'?",
}


@pytest.mark.parametrize(("option", "answer"), SPELLINGS.items())
def test_other_names_of_an_option_are_answered_with_its_own(option, answer, capsys):
    assert main(["train", "sasrec", option, "3"]) == 2
    assert answer in capsys.readouterr().err


def test_the_answer_depends_on_the_model(capsys):
    for arguments, answer in (
        (["train", "tisasrec", "--l2_emb"], "--set model.embedding_l2="),
        (["train", "hgt", "--hidden_dim"], "--set model.hidden="),
        (["plan", "lightgcn", "--n_layers"], "--set model.layers="),
        (["train", "--loss"], "--set model.loss="),
        (["train", "pop", "--set", "model.emb_size=3"], "unknown key 'model.emb_size'"),
        (["train", "conve", "--set", "model.emb_size=3"], "did you mean 'model.width'?"),
    ):
        assert main(arguments) == 2
        assert answer in capsys.readouterr().err


def test_the_help_of_a_model_lists_its_options(capsys):
    assert main(["train", "conve", "--help"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"model\.channels= +32 +number C of convolution filters", shown)
    assert "model.max_length" not in shown
    assert main(["plan", "sasrec", "--help"]) == 0
    assert re.search(r"model\.norm= +pre .*pre, post", capsys.readouterr().out)

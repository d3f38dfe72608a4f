"""Several processes end to end: the same results; what happens when one dies or stands still."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
import torch

from hasten import api, run
from hasten import loaded_run as finished
from hasten.distributed import launch
from hasten.distributed.launch import run_processes
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import fingerprint, training_log
from tests import forked
from tests.contract.cases import sequences
from tests.distributed.test_processes import ROOT, free_port

HEARTBEAT = 4
SETTINGS = ("model.width=16", "model.max_length=12", "checkpoint.every_steps=3")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "events.csv"
    pyarrow.csv.write_csv(pa.table(sequences(users=50)), path)
    return path


def arguments(data: Path, out: Path, epochs: int, *sets: str, every: int = 10) -> list[str]:
    """``hasten train`` of 7 steps an epoch; evaluated seldom, because that takes longest."""
    chosen = (*SETTINGS, f"distributed.heartbeat={HEARTBEAT}", *sets)
    return [
        *("train", "sasrec", str(data), "--out", str(out), "--epochs", str(epochs)),
        *("--batch-size", "8", "--device", "cpu", "--quiet", "--json"),
        *("--eval-every", str(every)),
        *(part for each in chosen for part in ("--set", each)),
    ]


def start(command: list[str], **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def torchrun(*own: str, module: str = "hasten") -> list[str]:
    nodes = ("--nproc-per-node", "2", "--master-port", str(free_port()), "--shutdown-timeout", "5")
    return [sys.executable, "-m", "torch.distributed.run", *nodes, *own, "-m", module]


def ranks(process: subprocess.Popen[str]) -> dict[int, int]:
    """rank -> process id of a launcher's children, by what their environment says."""
    found = {}
    task = Path(f"/proc/{process.pid}/task")
    for children in task.glob("*/children"):
        for child in children.read_text().split():
            try:
                variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            rank = next((v for v in variables if v.startswith(b"RANK=")), None)
            if rank is not None:
                found[int(rank[5:])] = int(child)
    return found


def wait_for(process: subprocess.Popen[str], out: Path, step: int) -> None:
    """Until the run in ``out`` has saved this step or a later one."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        names = [path.name for path in (out / "checkpoints").glob("epoch-*")]
        if any(_step(name) >= step for name in names):
            return
        time.sleep(0.05)
    raise AssertionError(f"no step {step} within 90 s")


def _step(name: str) -> int:
    epoch, _, step = name.removeprefix("epoch-").partition("-step-")
    return 7 * int(epoch) + int(step or 0)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended, with their children, whatever happens."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        for child in ranks(process).values():
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_two_processes_are_one_run(data, tmp_path, monkeypatch):
    """Trained by two, judged by one, two and three, gone on with by one and by two."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    out = tmp_path / "two"
    asked = arguments(data, out, 4, "model.dropout=0", "training.average=1")
    done = run_processes(asked, 2, capture=True)
    assert done.code == 0
    result = json.loads(done.output)
    assert (result["effective"]["devices"], result["effective"]["backend"]) == (2, "gloo")
    assert sorted(path.name for path in out.glob("*.log")) == [
        *("train-rank1.log", "train.log", "val.log")
    ]
    assert "rank 1 of 2" in (out / "train-rank1.log").read_text()
    settings = dict(setting.split("=") for setting in SETTINGS)
    settings |= {"training.epochs": "4", "training.batch_size": "8", "evaluation.every": "10"}
    one = api.train(
        "sasrec",
        str(data),
        settings={
            **settings,
            "model.dropout": 0,
            "training.average": 1,
            "device": "cpu",
            "threads": 1,
        },
        out=str(tmp_path / "one"),
        quiet=True,
    )
    for ours, theirs in zip(training_log(out), training_log(tmp_path / "one"), strict=True):
        assert ours.pop("kind") == theirs.pop("kind")
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert result["test"] == pytest.approx(one.metrics, abs=1e-4)

    both = [read_checkpoint(path / "final").tensors for path in (out, tmp_path / "one")]
    for group in ("weights", "training"):
        for name, tensor in both[1][group].items():
            torch.testing.assert_close(both[0][group][name], tensor, rtol=1e-4, atol=1e-6)

    monkeypatch.setattr(launch, "subprocess", forked)
    judged = [finished.evaluate(out, device="cpu")]
    for count in (2, 3):
        judging = ["evaluate", str(out), "--device", "cpu", "--json"]
        judged.append(json.loads(run_processes(judging, count, capture=True).output))
    for each, count in zip(judged, (1, 2, 3), strict=True):
        assert each["devices"] == count
        assert (each["valid"], each["test"]) == (judged[0]["valid"], judged[0]["test"])
    assert judged[0]["test"] == result["test"]

    longer = run.resume(out, changes={"training.epochs": 5, "devices": 1}, quiet=True)
    assert (longer.epochs, longer.effective["devices"]) == (5, 1)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """An unbroken run of six epochs in two processes, with dropout."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "subprocess", forked)
        assert run_processes(arguments(data, out, 6), 2, capture=True).code == 0
    return out


@pytest.mark.slow
def test_a_signal_to_the_launcher_saves_and_the_run_goes_on_exactly(data, whole, tmp_path, started):
    """In two processes, in mid-epoch: the same bits as the unbroken run."""
    command = [sys.executable, "-m", "hasten", *arguments(data, tmp_path / "run", 6)]
    process = start([*command, "--devices", "2"])
    started.append(process)
    wait_for(process, tmp_path / "run", 4)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert err.count("interrupted by SIGTERM") == 1
    resumed = run_processes(["resume", str(tmp_path / "run"), "--json"], 2, capture=True)
    assert resumed.code == 0
    assert fingerprint(tmp_path / "run") == fingerprint(whole)
    assert training_log(tmp_path / "run") == training_log(whole)


#: becomes a command whose terminal is its standard input, which hangs up with SIGHUP
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.slow
def test_a_terminal_that_hangs_up_saves_and_the_run_goes_on_exactly(data, whole, tmp_path, started):
    """With the launcher in the terminal: nobody reads what two processes print from then on."""
    terminal, inside = os.openpty()
    shown = [part for part in arguments(data, tmp_path / "run", 6) if part != "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, "-m", "hasten", *shown, "--devices", "2"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"},
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        text=True,
    )
    os.close(inside)
    started.append(process)
    wait_for(process, tmp_path / "run", 4)
    both = ranks(process)
    assert len(both) == 2
    os.close(terminal)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not [child for child in both.values() if _state(child) != "Z"]
    assert "epoch 6" not in (tmp_path / "run" / "train.log").read_text()
    resumed = run_processes(["resume", str(tmp_path / "run"), "--json"], 2, capture=True)
    assert resumed.code == 0
    assert fingerprint(tmp_path / "run") == fingerprint(whole)
    assert training_log(tmp_path / "run") == training_log(whole)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_process_that_stands_still_is_named(stopped, data, tmp_path, started):
    command = [*torchrun(), *arguments(data, tmp_path / "run", 3000, every=3000)]
    process = start(command)
    started.append(process)
    wait_for(process, tmp_path / "run", 3)
    found = ranks(process)
    os.kill(found[stopped], signal.SIGSTOP)
    begin = time.monotonic()
    other = found[1 - stopped]
    while Path(f"/proc/{other}/stat").exists() and _state(other) != "Z":
        assert time.monotonic() < begin + HEARTBEAT + 10
        time.sleep(0.05)
    # torchrun gives the stopped one 30 s before it sends SIGKILL, whatever --shutdown-timeout says
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert f"rank {stopped} sent no heartbeat for {HEARTBEAT} s" in err


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_is_named_and_ends_all(killed, data, tmp_path, started):
    command = [sys.executable, "-m", "hasten", *arguments(data, tmp_path / "run", 3000)]
    process = start([*command, "--devices", "2"])
    started.append(process)
    wait_for(process, tmp_path / "run", 3)
    os.kill(ranks(process)[killed], signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"rank {killed}" in err
    assert "was killed by SIGKILL" in err
    assert json.loads(out)["error"]["code"] == "processes"


def _restarted(
    kills: int, epochs: int, data: Path, whole: Path, tmp_path: Path, started: list[Any]
) -> None:
    """Kill one process and then another; torchrun begins again and the run goes on by itself."""
    generator = random.Random(0)
    out = tmp_path / "run"
    # the same command again and again: no --resume auto
    command = torchrun("--max-restarts", str(kills), module="tests.faults.killed_in_step")
    # at least every third step is saved, so that each start comes further than the one before
    deaths = [[generator.choice([0, 1]), generator.randint(8, 20)] for _ in range(kills)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASTEN_TEST_KILLS", json.dumps(deaths))
        process = start([*command, *arguments(data, out, epochs)])
    started.append(process)
    _, err = process.communicate(timeout=60 + 30 * kills)
    assert process.returncode == 0, err
    assert f"begun again {kills} times" in (out / "train.log").read_text()
    assert fingerprint(out) == fingerprint(whole)
    assert training_log(out) == training_log(whole)


def test_a_killed_process_is_started_again_and_the_run_ends_the_same(
    data, whole, tmp_path, started
):
    _restarted(1, 6, data, whole, tmp_path, started)


@pytest.mark.slow
def test_killed_ten_times(data, tmp_path, started):
    whole = tmp_path / "whole"
    assert run_processes(arguments(data, whole, 40), 2, capture=True).code == 0
    _restarted(10, 40, data, whole, tmp_path, started)


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True])
def test_launchers_of_torch_work_on_the_same_command(old, data, tmp_path, started):
    """Also the old one, which puts --local-rank before the arguments; runs get their own name."""
    command = torchrun()
    if old:
        command = [
            part.replace("torch.distributed.run", "torch.distributed.launch") for part in command
        ]
    given = arguments(data, tmp_path / "run", 2)
    process = start([*command, *given])
    started.append(process)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["effective"]["devices"] == 2
    assert (tmp_path / "run" / "final" / "manifest.json").is_file()


@pytest.mark.slow
def test_a_run_without_a_name_is_found_again_after_a_restart(data, tmp_path, started):
    given = arguments(data, Path("unused"), 6)
    del given[given.index("--out") : given.index("--out") + 2]
    command = [*torchrun("--max-restarts", "1"), *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _source()}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    started.append(process)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/checkpoints/epoch-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(ranks(process)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "final" / "manifest.json").is_file()
    assert "begun again 1 times" in (folder / "train.log").read_text()


def _source() -> str:
    import hasten

    return str(Path(hasten.__file__).parents[1])


@pytest.mark.slow
def test_another_run_is_not_taken_over_after_a_restart(data, tmp_path, started):
    """The folder holds a finished run: refused, and refused again by the process begun anew."""
    assert run_processes(arguments(data, tmp_path / "run", 1), 2, capture=True).code == 0
    before = fingerprint(tmp_path / "run")
    process = start([*torchrun("--max-restarts", "1"), *arguments(data, tmp_path / "run", 9)])
    started.append(process)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "holds a run already" in err
    assert fingerprint(tmp_path / "run") == before


@pytest.mark.slow
def test_doctor_tests_the_exchange():
    done = run_processes(["doctor", "--distributed", "--json"], 2, capture=True)
    assert done.code == 0
    found = json.loads(done.output)
    assert (found["ok"], found["world"], found["backend"]) == (True, 2, "gloo")
    assert [each["rank"] for each in found["processes"]] == [0, 1]
    assert all(row["gb_per_second"] > 0 for row in found["sums"])
    assert {row["through"] for row in found["sums"]} == {"gloo"}


@pytest.mark.slow
def test_the_library_starts_processes_from_a_script_without_a_guard(data, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import hasten\n"
        f"result = hasten.train('sasrec', {str(data)!r}, epochs=1, devices=2, device='cpu',\n"
        f"                      out={str(tmp_path / 'run')!r}, quiet=True)\n"
        "print(result.summary.effective['devices'], result.metrics)\n"
        "try:\n"
        f"    hasten.train('sasrec', {str(data)!r}, devices=2, out={str(tmp_path / 'run')!r})\n"
        "except hasten.HastenError as error:\n"
        "    print(error.code, error)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _source()}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("2 {")
    assert second.startswith("run_folder ")
    assert "holds a run already" in second
